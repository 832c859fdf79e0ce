/* The order of collectives and other commands, and how collectives pass on faults: core/comm. */
#include "test.h"

#include "comm.h"

TEST(a_collective_follows_the_participants_writes_and_comes_before_their_next_ones) {
    for (int round = 0; round < 50; round++) {
        setup(3);
        gate g = {0};
        cfx_tensor x[3] = {0}, *leaves[3], seen[3] = {0};
        shut_gate(&g, device[round % 3], CF_COMPUTE);
        for (int i = 0; i < 3; i++) {
            x[i] = full(device[i], 100000, i + 1);
            leaves[i] = &x[i];
        }
        CHECK_STATUS(cfx_allreduce("sum", 3, 1, leaves), CFX_OK);
        for (int i = 0; i < 3; i++) {
            CHECK_STATUS(cfx_clone(&x[i], &seen[i]), CFX_OK);
            CHECK_STATUS(cfx_binary_scalar_into(CF_OP_mul, &x[i], 10), CFX_OK);
            CHECK(!cfx_ready(&seen[i]));
        }
        CHECK_STATUS(cfx_allreduce("sum", 3, 1, leaves), CFX_OK);
        open_gate(&g);
        for (int i = 0; i < 3; i++) {
            CHECK_EQ(value_of(&seen[i]), 6);
            CHECK_EQ(value_of(&x[i]), 180);
        }
        release(3, x);
        release(3, seen);
        teardown();
    }
}

TEST(a_reduction_to_a_root_only_reads_the_others) {
    setup(2);
    gate g = {0};
    cfx_tensor root = full(device[0], 8, 1), other = full(device[1], 8, 2);
    CHECK_STATUS(cfx_sync(context, NULL), CFX_OK);
    hold_queue(&g, device[1], device[0], CF_COMM);
    CHECK_STATUS(cfx_reduce_to("sum", 0, 2, 1, (cfx_tensor *[]){&root, &other}), CFX_OK);
    CHECK(cfx_ready(&other)); /* its value is what it was */
    CHECK(!cfx_ready(&root));
    open_gate(&g);
    CHECK_EQ(value_of(&root), 3);
    cfx_release(&root);
    cfx_release(&other);
    teardown();
}

TEST(a_small_tensor_is_joined_by_one_device_and_many_by_all) {
    enum { N = 12 };
    setup(3);
    cfx_tensor x[3 * N], *leaves[3 * N];
    uint64_t before[3];
    for (int k = 0; k < 3 * N; k++) {
        x[k] = full(device[k / N], 20000, k / N + 1);
        leaves[k] = &x[k];
    }
    for (int d = 0; d < 3; d++) before[d] = last_of(device[d], CF_COMM).ticket;
    CHECK_STATUS(cfx_allreduce("sum", 3, 1, (cfx_tensor *[]){&x[0], &x[N], &x[2 * N]}), CFX_OK);
    CHECK_EQ(last_of(device[0], CF_COMM).ticket, before[0] + 1);
    for (int d = 1; d < 3; d++) CHECK_EQ(last_of(device[d], CF_COMM).ticket, before[d]);
    CHECK_STATUS(cfx_allreduce("sum", 3, N, leaves), CFX_OK);
    int all = -1;
    for (int d = 0; d < 3; d++) {
        const int own = (int)(last_of(device[d], CF_COMM).ticket - before[d]);
        CHECK(own >= 2);
        all += own;
    }
    CHECK_EQ(all, N);
    for (int k = 0; k < 3 * N; k++) CHECK_EQ(value_of(&x[k]), k % N ? 6 : 18);
    release(3 * N, x);
    teardown();
}

TEST(a_worker_that_does_not_come_to_its_slice_holds_up_nobody) {
    enum { N = 400000 };
    setup(3);
    gate g = {0};
    cfx_tensor x[3], *leaves[3];
    for (int i = 0; i < 3; i++) {
        x[i] = full(device[i], N, i + 1);
        leaves[i] = &x[i];
    }
    CHECK_STATUS(cfx_sync(context, NULL), CFX_OK);
    const cf_event shut = shut_gate(&g, device[1], CF_COMM);
    for (int round = 1; round <= 10; round++) {
        CHECK_STATUS(cfx_allreduce("max", 3, 1, leaves), CFX_OK);
        CHECK_STATUS(cfx_allreduce("sum", 3, 1, leaves), CFX_OK);
    }
    for (int i = 0; i < 3; i++) CHECK_EQ(value_of(&x[i]), 3 * 59049);
    CHECK(!cf_event_done(shut));
    release(3, x);
    open_gate(&g);
    teardown();
}

TEST(a_fault_of_the_queue_that_ends_a_collective_makes_its_result_void) {
    enum { N = 400000 };
    setup(2);
    for (int round = 0; round < 20; round++) {
        cfx_tensor x[2], *leaves[2];
        for (int i = 0; i < 2; i++) {
            x[i] = full(device[i], N, i + 1);
            leaves[i] = &x[i];
        }
        enqueue(device[0], CF_COMM, run_fault, 0, NULL, 0, "", 0);
        CHECK_STATUS(cfx_allreduce("sum", 2, 1, leaves), CFX_OK);
        CHECK_STATUS(cfx_wait(&x[round % 2]), CFX_EFAULT);
        CHECK(says("made to fail"));
        release(2, x);
    }
    cfx_tensor x[2] = {full(device[0], N, 1), full(device[1], N, 2)};
    CHECK_STATUS(cfx_allreduce("sum", 2, 1, (cfx_tensor *[]){&x[0], &x[1]}), CFX_OK);
    for (int i = 0; i < 2; i++) CHECK_EQ(value_of(&x[i]), 3);
    release(2, x);
    teardown();
}

/* x[i] = 1 / (1 + (7 i + 3 r) % 1009), whose sums depend on their order. */
static cfx_tensor fractions(cfx_device *on, int r, int n, float *out) {
    const int64_t shape = n;
    cfx_tensor x = {0};
    for (int i = 0; i < n; i++) out[i] = 1.0f / (float)(1 + (7 * i + 3 * r) % 1009);
    CHECK_STATUS(cfx_from_host(on, CFX_FLOAT32, 1, &shape, out, &x), CFX_OK);
    return x;
}

TEST(each_element_is_added_once_in_the_order_of_the_replicas_however_a_tensor_is_cut) {
    static const int sizes[] = {1, 24575, 24577, 49153, 123457, 300007};
    static float in[5][300007], got[300007];
    setup(5);
    for (int round = 0; round < 12; round++) {
        const int n = sizes[round % 6], replicas = round < 6 ? 5 : 2;
        cfx_tensor x[5], *leaves[5];
        for (int r = 0; r < replicas; r++) {
            x[r] = fractions(device[r], r, n, in[r]);
            leaves[r] = &x[r];
        }
        CHECK_STATUS(cfx_allreduce("sum", replicas, 1, leaves), CFX_OK);
        for (int r = 0; r < replicas; r++) {
            int wrong = 0;
            CHECK_STATUS(cfx_read(&x[r], got, (size_t)n * sizeof *got), CFX_OK);
            for (int i = 0; i < n; i++) {
                float sum = in[0][i];
                for (int s = 1; s < replicas; s++) sum += in[s][i];
                wrong += got[i] != sum;
            }
            CHECK_EQ(wrong, 0);
        }
        release(replicas, x);
    }
    teardown();
}

TEST(a_bucket_is_reduced_while_the_rest_of_backward_is_still_blocked) {
    setup(3);
    /* Two buckets: w is more than the first one's size, and its gradient is complete before v's begins. */
    const int64_t sizes[2] = {400000, 100000};
    model grads;
    make_model(&grads, 2, 2, sizes);
    cfx_tensor w[2], v[2], late[2] = {0}, far = full(device[2], sizes[1], 5);
    gate g = {0};
    CHECK_STATUS(cfx_sync(context, NULL), CFX_OK);
    shut_gate(&g, device[2], CF_COMPUTE);
    CHECK_STATUS(cfx_binary_scalar_into(CF_OP_add, &far, 1), CFX_OK); /* 6, once the gate is open */
    for (int r = 0; r < 2; r++) {
        w[r] = full(device[r], sizes[0], r + 1);
        v[r] = full(device[r], sizes[1], 1);
        cfx_tensor custom = full(device[r], sizes[1], 1), a = {0}, b = {0}, y = {0}, loss = {0}, dy = {0};
        cfx_tape *tape;
        int32_t id;
        CHECK_STATUS(cfx_tape_begin(context, 2, (cfx_tensor *[]){&w[r], &v[r]}, &tape), CFX_OK);
        CHECK_STATUS(cfx_tape_record(1, 1, (const cfx_tensor *[]){&v[r]}, 0, NULL, &custom), CFX_OK);
        CHECK_STATUS(cfx_reduce(CF_OP_sum, &custom, 0, NULL, 0, 0, &a), CFX_OK);
        CHECK_STATUS(cfx_binary(CF_OP_mul, &w[r], &w[r], &b), CFX_OK);
        CHECK_STATUS(cfx_reduce(CF_OP_sum, &b, 0, NULL, 0, 0, &y), CFX_OK);
        CHECK_STATUS(cfx_binary(CF_OP_add, &y, &a, &loss), CFX_OK);
        CHECK_STATUS(cfx_tape_backward(tape, &loss, &grads.leaves[2 * r], 0), CFX_CUSTOM);
        CHECK_STATUS(cfx_tape_custom(tape, &id, &dy), CFX_OK);
        CHECK_STATUS(cfx_to(&far, device[r], -1, &late[r]), CFX_OK); /* the compute queue stands still from here on */
        CHECK_STATUS(cfx_tape_give(tape, 0, &late[r]), CFX_OK);
        CHECK_STATUS(cfx_tape_resume(tape), CFX_OK);
        cfx_tape_end(&tape);
        cfx_tensor *all[] = {&custom, &a, &b, &y, &loss, &dy};
        for (int k = 0; k < 6; k++) cfx_release(all[k]);
    }
    CHECK_EQ(grads.x[0][0]._buffer->nbuckets, 2);
    const uint64_t first = last_of(device[0], CF_COMM).ticket + 1;
    CHECK_STATUS(cfx_allreduce("sum", 2, 2, grads.leaves), CFX_OK);
    for (int r = 0; r < 2; r++) /* the first bucket's slices */
        CHECK_STATUS(cf_event_wait((cf_event){&cf_queue_at(device[r], CF_COMM)->timeline, first}), CFX_OK);
    for (int r = 0; r < 2; r++) {
        const float *data = (const float *)(const void *)cf_data(&grads.x[r][0]);
        CHECK_EQ(data[0], 6);
        CHECK_EQ(data[sizes[0] - 1], 6);
        CHECK(!cf_event_done(last_of(device[r], CF_COMPUTE)));
    }
    CHECK(!cfx_ready(&grads.x[0][1]));
    open_gate(&g);
    for (int r = 0; r < 2; r++) {
        CHECK_EQ(value_of(&grads.x[r][0]), 6);
        CHECK_EQ(value_of(&grads.x[r][1]), 12);
        CHECK_EQ(grads.x[r][0]._buffer->nbuckets, 0);
    }
    release(2, w);
    release(2, v);
    release(2, late);
    cfx_release(&far);
    free_model(&grads);
    teardown();
}

TEST(bucket_events_hold_only_until_the_next_write) {
    setup(3);
    const int64_t sizes[2] = {400000, 100000};
    for (int round = 0; round < 20; round++) {
        model grads;
        gate g = {0};
        make_model(&grads, 2, 2, sizes);
        cfx_tensor w[2][2], far = full(device[2], 1, 2);
        for (int r = 0; r < 2; r++) {
            cfx_tensor a = {0}, loss = {0};
            cfx_tape *tape;
            w[r][0] = full(device[r], sizes[0], 1);
            w[r][1] = full(device[r], sizes[1], 1);
            CHECK_STATUS(cfx_tape_begin(context, 2, (cfx_tensor *[]){&w[r][0], &w[r][1]}, &tape), CFX_OK);
            CHECK_STATUS(cfx_reduce(CF_OP_sum, &w[r][0], 0, NULL, 0, 0, &a), CFX_OK);
            CHECK_STATUS(cfx_binary_scalar(CF_OP_mul, &a, r + 1, 0, &loss), CFX_OK);
            CHECK_STATUS(cfx_tape_backward(tape, &loss, &grads.leaves[2 * r], 0), CFX_OK);
            cfx_tape_end(&tape);
            cfx_release(&a);
            cfx_release(&loss);
        }
        shut_gate(&g, device[2], CF_COMPUTE);
        CHECK_STATUS(cfx_binary_scalar_into(CF_OP_add, &far, 8), CFX_OK);
        for (int r = 0; r < 2; r++) { /* scaled, some time later: the reduction must wait for that */
            cfx_tensor ten = {0};
            CHECK_STATUS(cfx_to(&far, device[r], -1, &ten), CFX_OK);
            CHECK_STATUS(cfx_binary_into(CF_OP_mul, &grads.x[r][0], &ten), CFX_OK);
            CHECK_EQ(grads.x[r][0]._buffer->nbuckets, 0);
            cfx_release(&ten);
        }
        CHECK_STATUS(cfx_allreduce("sum", 2, 2, grads.leaves), CFX_OK);
        open_gate(&g);
        for (int r = 0; r < 2; r++) {
            CHECK_EQ(value_of(&grads.x[r][0]), 30);
            CHECK_EQ(value_of(&grads.x[r][1]), 0);
            release(2, w[r]);
        }
        cfx_release(&far);
        free_model(&grads);
    }
    teardown();
}

TEST(buckets_of_a_second_backward_are_its_own) {
    setup(3);
    const int64_t sizes[2] = {400000, 100000};
    model grads;
    gate g = {0};
    make_model(&grads, 2, 2, sizes);
    cfx_tensor w[2][2], far = full(device[2], 1, 2);
    for (int r = 0; r < 2; r++)
        for (int k = 0; k < 2; k++) w[r][k] = full(device[r], sizes[k], 1);
    for (int round = 0; round < 2; round++) {
        if (round) shut_gate(&g, device[2], CF_COMPUTE);
        for (int r = 0; r < 2; r++) {
            cfx_tensor a = {0}, loss = {0}, held = {0};
            cfx_tape *tape;
            if (round) { /* all of the second backward is held, the zeros of the untouched bucket among it */
                if (r == 0) CHECK_STATUS(cfx_binary_scalar_into(CF_OP_add, &far, 8), CFX_OK);
                CHECK_STATUS(cfx_to(&far, device[r], -1, &held), CFX_OK);
            }
            CHECK_STATUS(cfx_tape_begin(context, 2, (cfx_tensor *[]){&w[r][0], &w[r][1]}, &tape), CFX_OK);
            CHECK_STATUS(cfx_reduce(CF_OP_sum, &w[r][!round], 0, NULL, 0, 0, &a), CFX_OK);
            CHECK_STATUS(cfx_binary_scalar(CF_OP_mul, &a, 3, 0, &loss), CFX_OK);
            CHECK_STATUS(cfx_tape_backward(tape, &loss, &grads.leaves[2 * r], 0), CFX_OK);
            cfx_tape_end(&tape);
            cfx_release(&a);
            cfx_release(&loss);
            cfx_release(&held);
        }
        CHECK_STATUS(cfx_allreduce("sum", 2, 2, grads.leaves), CFX_OK);
        if (round) open_gate(&g);
        for (int r = 0; r < 2; r++)
            for (int k = 0; k < 2; k++) CHECK_EQ(value_of(&grads.x[r][k]), k == !round ? 6 : 0);
    }
    release(2, w[0]);
    release(2, w[1]);
    cfx_release(&far);
    free_model(&grads);
    teardown();
}

TEST(a_small_rest_of_a_buffer_has_no_bucket_of_its_own) {
    for (int large = 0; large < 2; large++) {
        setup(1);
        const int64_t sizes[2] = {400000, large ? 1 << 16 : 1000};
        model grads;
        make_model(&grads, 1, 2, sizes);
        cfx_tensor w[2], loss = {0};
        cfx_tape *tape;
        for (int k = 0; k < 2; k++) w[k] = full(device[0], sizes[k], 1);
        CHECK_STATUS(cfx_tape_begin(context, 2, (cfx_tensor *[]){&w[0], &w[1]}, &tape), CFX_OK);
        CHECK_STATUS(cfx_reduce(CF_OP_sum, &w[0], 0, NULL, 0, 0, &loss), CFX_OK);
        CHECK_STATUS(cfx_tape_backward(tape, &loss, grads.leaves, 0), CFX_OK);
        CHECK_EQ(grads.x[0][0]._buffer->nbuckets, 1 + large);
        cfx_tape_end(&tape);
        cfx_release(&loss);
        release(2, w);
        free_model(&grads);
        teardown();
    }
}

/* ---- faults ----------------------------------------------------------------------------------------- */

TEST(a_fault_of_one_replica_is_passed_to_all_so_that_none_updates) {
    setup(3);
    cfx_tensor w[3], grad[3], *leaves[3];
    for (int i = 0; i < 3; i++) {
        w[i] = full(device[i], 100, 7);
        if (i == 1) fault(device[i]);
        grad[i] = full(device[i], 100, 1);
        leaves[i] = &grad[i];
    }
    CHECK_STATUS(cfx_allreduce("avg", 3, 1, leaves), CFX_OK);
    for (int i = 0; i < 3; i++) CHECK_STATUS(cfx_binary_into(CF_OP_sub, &w[i], &grad[i]), CFX_OK);
    CHECK_STATUS(cfx_wait(&w[2]), CFX_EFAULT);
    CHECK(says("made to fail"));
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(value_of(&w[i]), 7);
        CHECK_STATUS(cfx_wait(&grad[i]), CFX_EFAULT);
        CHECK(says("never written"));
    }
    const uint64_t before = last_of(device[0], CF_COMM).ticket;
    CHECK_STATUS(cfx_allreduce("avg", 3, 1, leaves), CFX_EFAULT); /* void, and refused at once */
    CHECK_EQ(last_of(device[0], CF_COMM).ticket, before);
    CHECK_STATUS(cfx_allreduce("avg", 3, 1, (cfx_tensor *[]){&w[0], &w[1], &w[2]}), CFX_OK); /* life goes on */
    CHECK_EQ(value_of(&w[1]), 7);
    release(3, w);
    release(3, grad);
    teardown();
}

TEST(void_gradients_in_buckets_are_refused_too) {
    setup(2);
    model grads;
    make_model(&grads, 2, 1, (int64_t[]){1000});
    cfx_tensor w[2];
    for (int r = 0; r < 2; r++) {
        cfx_tensor loss = {0};
        cfx_tape *tape;
        w[r] = full(device[r], 1000, 1);
        if (r == 1) fault(device[r]);
        CHECK_STATUS(cfx_tape_begin(context, 1, (cfx_tensor *[]){&w[r]}, &tape), CFX_OK);
        CHECK_STATUS(cfx_reduce(CF_OP_sum, &w[r], 0, NULL, 0, 0, &loss), CFX_OK);
        CHECK_STATUS(cfx_tape_backward(tape, &loss, grads.leaves + r, 0), CFX_OK);
        cfx_tape_end(&tape);
        cfx_release(&loss);
    }
    CHECK_STATUS(cfx_sync(context, NULL), CFX_EFAULT);
    CHECK_EQ(grads.x[1][0]._buffer->nbuckets, 1);
    CHECK_STATUS(cfx_allreduce("sum", 2, 1, grads.leaves), CFX_EFAULT);
    CHECK_EQ(value_of(&grads.x[0][0]), 1);
    release(2, w);
    free_model(&grads);
    teardown();
}

TEST(a_fault_elsewhere_does_not_take_the_value_of_what_is_only_read) {
    setup(2);
    cfx_tensor root = full(device[0], 100, 1);
    CHECK_STATUS(cfx_sync(context, NULL), CFX_OK);
    fault(device[1]);
    cfx_tensor other = full(device[1], 100, 2);
    CHECK_STATUS(cfx_broadcast(0, 2, 1, (cfx_tensor *[]){&root, &other}), CFX_OK);
    CHECK_STATUS(cfx_wait(&other), CFX_EFAULT);
    CHECK_EQ(value_of(&root), 1);
    cfx_release(&root);
    cfx_release(&other);
    teardown();
}

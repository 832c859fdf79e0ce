/* peer_mpi.c: Open MPI's all-reduce, for comm.lua.
 *
 *     mpicc -O2 -o peer_mpi scripts/bench/peer_mpi.c && mpirun -n 2 ./peer_mpi
 *
 * For each line "BYTES REPEATS" that it reads, rank 0 prints the microseconds of an MPI_Allreduce of so many bytes of
 * floats, in place, the mean of REPEATS.  Between two lines no rank spins, as MPI's own waiting would.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* The next line's two numbers, in all ranks; 0: there is none. */
static int next(int rank, long *order) {
    MPI_Request request;
    int is_done = 0;
    if (rank == 0 && scanf("%ld %ld", &order[0], &order[1]) != 2) order[1] = 0;
    MPI_Ibcast(order, 2, MPI_LONG, 0, MPI_COMM_WORLD, &request);
    while (MPI_Test(&request, &is_done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !is_done) usleep(5000);
    return order[1] > 0;
}

int main(int argc, char **argv) {
    int rank;
    long order[2];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    while (next(rank, order)) {
        const int n = (int)(order[0] / (long)sizeof(float));
        float *x = calloc((size_t)n, sizeof *x);
        if (!x) MPI_Abort(MPI_COMM_WORLD, 1);
        for (int k = 0; k < 2; k++) MPI_Allreduce(MPI_IN_PLACE, x, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        MPI_Barrier(MPI_COMM_WORLD);
        const double start = MPI_Wtime();
        for (long k = 0; k < order[1]; k++) MPI_Allreduce(MPI_IN_PLACE, x, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        const double took = (MPI_Wtime() - start) * 1e6 / (double)order[1];
        free(x);
        if (rank == 0) printf("%.17g\n", took), fflush(stdout);
    }
    MPI_Finalize();
    return 0;
}

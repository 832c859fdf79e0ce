// serve.cpp: a C++17 program around the same engine: what the C interface needs to feel at home there.
//
// A function object becomes a function of Lua's, a vector becomes a tensor without a copy and lives as long as that does.
// Build it with -lconflux_host -lconflux.
#include <conflux.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <initializer_list>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

// ---- a thin coat -------------------------------------------------------------------------------------------

static void check(cfx_status status) {
    if (status != CFX_OK) throw std::runtime_error(cfx_error());
}

// A value that gives back what it owns.
class Value {
  public:
    Value() = default;
    Value(double number) {
        value_.kind = CFX_NUMBER;
        value_.as.number = number;
    }
    Value(const std::string &text) { check(cfx_value_string(text.data(), text.size(), &value_)); }
    Value(Value &&other) noexcept : value_(std::exchange(other.value_, cfx_value{})) {}
    Value &operator=(Value &&other) noexcept {
        std::swap(value_, other.value_);
        return *this;
    }
    ~Value() { cfx_value_release(1, &value_); }

    // The vector moves in, and is destroyed when the last use of the tensor is over.
    Value(cfx_device *device, std::vector<float> data, std::initializer_list<std::int64_t> shape) {
        auto own = std::make_unique<std::vector<float>>(std::move(data));
        check(cfx_share(
            device, CFX_FLOAT32, static_cast<std::int32_t>(shape.size()), shape.begin(), own->data(),
            own->size() * sizeof(float), [](void *p) { delete static_cast<std::vector<float> *>(p); }, own.get(),
            &value_.as.tensor));
        own.release();
        value_.kind = CFX_TENSOR;
    }

    double number() const { return value_.kind == CFX_NUMBER ? value_.as.number : std::nan(""); }
    cfx_tensor *tensor() { return value_.kind == CFX_TENSOR ? &value_.as.tensor : nullptr; }
    // For an array of arguments, which stay ours.
    const cfx_value &raw() const { return value_; }
    cfx_value *out() { return &value_; }

  private:
    cfx_value value_{};
};

class Engine {
  public:
    using Function = std::function<double(double)>;

    explicit Engine(std::uint64_t seed) {
        cfx_engine_options options{};
        options.size = sizeof options;
        options.devices = "cpu*2";
        options.threads = 2;
        options.seed = seed;
        cfx_engine *engine = nullptr;
        check(cfx_engine_new(&options, &engine));
        engine_.reset(engine);
    }

    cfx_device *device() const { return cfx_device_at(cfx_engine_context(engine_.get()), 0); }
    void run(const std::string &text, const char *name) {
        check(cfx_engine_run_buffer(engine_.get(), text.data(), text.size(), name));
    }

    template <class... Values> Value call(const char *name, const Values &...args) {
        const std::vector<cfx_value> raw{args.raw()...};
        Value result;
        check(cfx_engine_call(engine_.get(), name, static_cast<std::int32_t>(raw.size()), raw.data(), 1, result.out()));
        return result;
    }

    // No exception may pass through Lua: it ends here and goes on as an error of the script's.
    void add(const char *name, Function function) {
        functions_.push_back(std::make_unique<Function>(std::move(function)));
        check(cfx_engine_register(engine_.get(), name, &Engine::forward, functions_.back().get()));
    }

  private:
    static std::int32_t forward(void *data, std::int32_t nargs, const cfx_value *args, std::int32_t,
                                cfx_value *results) {
        try {
            if (nargs != 1 || args[0].kind != CFX_NUMBER) throw std::invalid_argument("expected a number");
            results[0].kind = CFX_NUMBER;
            results[0].as.number = (*static_cast<Function *>(data))(args[0].as.number);
            return 1;
        } catch (const std::exception &error) {
            cfx_error_set(error.what());
            return -1;
        }
    }

    struct Free {
        void operator()(cfx_engine *engine) const { cfx_engine_free(engine); }
    };
    std::vector<std::unique_ptr<Function>> functions_; // outlive the engine
    std::unique_ptr<cfx_engine, Free> engine_;
};

// ---- a program that uses it --------------------------------------------------------------------------------

static const char script[] = R"lua(
local cf = require "conflux"
local nn, optim = cf.nn, cf.optim

local models = cf.replicate(nn.Chain(nn.Dense(1, 32, "tanh"), nn.Dense(32, 1)))
local states = cf.withdevices(function(i) return optim.Adam(1e-2):setup(models[i]) end)

function fit(x, y)
  local losses
  for step = 1, 600 do
    losses = {}
    local grads = cf.withdevices(function(i, device)
      local mx, my = device(x), device(y)
      local l, g = cf.withgradient(function(m) return nn.mse(m(mx), my) end, models[i])
      losses[i] = l
      return g
    end)
    cf.allreduce("avg", grads)
    cf.withdevices(function(i) optim.update(states[i], models[i], grads[i]) end)
    if step % 200 == 0 then host.report(losses[1]:item()) end
  end
  return losses[1]:item()
end

function apply(x) return models[1](x) end

function ask(x)
  local y = host.root(x)
  return y
end
)lua";

static int run() {
    std::vector<double> reports;
    Engine engine(7);
    engine.add("host.report", [&](double loss) {
        reports.push_back(loss);
        std::printf("loss %.5f\n", loss);
        return 0.0;
    });
    engine.add("host.root", [](double x) {
        if (x < 0) throw std::domain_error("the root of a negative number");
        return std::sqrt(x);
    });
    engine.run(script, "fit.lua");

    std::vector<float> x, y;
    for (int i = 0; i < 64; i++) {
        x.push_back(static_cast<float>(i) / 32 - 1);
        y.push_back(x.back() * x.back());
    }
    const Value xs(engine.device(), std::move(x), {64, 1}), ys(engine.device(), std::move(y), {64, 1});
    const double loss = engine.call("fit", xs, ys).number();
    if (!(loss < 0.01) || reports.size() != 3) throw std::runtime_error("it did not learn");

    const Value half(engine.device(), {0.5F}, {1, 1});
    Value guess = engine.call("apply", half);
    float is = 0;
    check(cfx_read(guess.tensor(), &is, sizeof is));
    std::printf("0.5 squared: %.3f\n", static_cast<double>(is));

    if (engine.call("ask", Value(9)).number() != 3) throw std::runtime_error("the root of 9");
    try {
        engine.call("ask", Value(-1));
        throw std::logic_error("no error");
    } catch (const std::runtime_error &error) {
        const std::string text = error.what();
        const std::string line = text.substr(0, text.find('\n'));
        std::printf("refused: %s\n", line.c_str());
        if (line != "fit.lua:28: the root of a negative number") throw;
    }
    return EXIT_SUCCESS;
}

int main() {
    try {
        return run();
    } catch (const std::exception &error) {
        std::fprintf(stderr, "serve: %s\n", error.what());
        return EXIT_FAILURE;
    }
}

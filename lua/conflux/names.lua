--- Names that do not exist: what is meant by them.
--
-- The rooms (cf, nn, optim, ...) raise where a script reads a field that they lack, instead of giving the nil that
-- fails a line later; so do tensors.  The message says what the name is called here if another library has it, where
-- it lies if another room has it, or the nearest name.  Only a miss comes here: a name that exists costs nothing.
-- @module conflux.names
local core = require "conflux.core"

local rawget, setmetatable, type = rawget, setmetatable, type
local each = core.each
local abs, floor, max, min = math.abs, math.floor, math.max, math.min

local names = {}

-- PyTorch's, Flux's and Torch's names, in lower case, and ours for them.  A text that begins with "Conflux" stands for
-- itself, others follow "here it is".
local CONVOLUTION, TRANSPOSED = "nn.Conv(in, out, kernel), over [n, h, w, c]", "nn.ConvTranspose(in, out, kernel)"
local DIMENSIONS = "Conflux has convolutions and pools over images alone: nn.Conv of [n, 1, length, channels]"
local BATCHNORM, GLOBAL = "nn.BatchNorm(n), over the last dimension", "nn.GlobalMeanPool()"
local RECURRENT, ATTENTION = "Conflux has no recurrent layers yet", "Conflux has no attention layer yet"
local GRADIENT = "Conflux differentiates a function: loss, gradient = cf.withgradient(f, model)"
local FRESH = "Conflux makes a fresh gradient in each call of cf.withgradient: nothing has to be zeroed"
local MOVE = "device(x), with device = cf.device 'cuda:0'; or x:to 'cpu'"
local LIKE = "such as cf.zeros(x.shape, {dtype = x.dtype, device = x.device})"
local PLAIN = "Conflux needs no class for it: any float tensor in a nested table is a parameter"
local ACTIVATION = "a name in a layer or Chain, nn.Dense(2, 3, 'relu'), or a function, cf.relu(x)"
local DECAY = "the option decay, as in optim.AdamW(lr, {decay = 0.01})"
local SCHEDULE = "a function of the update count as the rate, such as optim.cosine(peak, steps)"

local THEIRS = {
  -- layers
  linear = "nn.Dense(in, out)", conv1d = DIMENSIONS, conv2d = CONVOLUTION, conv3d = DIMENSIONS,
  spatialconvolution = CONVOLUTION, depthwiseconv = "nn.Conv(n, n, kernel, {groups = n})",
  convtranspose2d = TRANSPOSED, spatialfullconvolution = TRANSPOSED, maxpool2d = "nn.MaxPool(kernel)",
  spatialmaxpooling = "nn.MaxPool(kernel)", avgpool2d = "nn.MeanPool(kernel)", avgpool = "nn.MeanPool(kernel)",
  spatialaveragepooling = "nn.MeanPool(kernel)", adaptiveavgpool2d = "nn.AdaptiveMeanPool(size)",
  adaptivemeanpool2d = "nn.AdaptiveMeanPool(size)", globalavgpool = GLOBAL, globalaveragepooling = GLOBAL,
  batchnorm1d = BATCHNORM, batchnorm2d = BATCHNORM, spatialbatchnormalization = BATCHNORM,
  interpolate = "nn.Upsample(scale)", upsamplingbilinear2d = "nn.Upsample(scale, {mode = 'bilinear'})",
  rnn = RECURRENT, lstm = RECURRENT, gru = RECURRENT, multiheadattention = ATTENTION, attention = ATTENTION,
  transformer = ATTENTION, scaled_dot_product_attention = ATTENTION, sequential = "nn.Chain(..)",
  modulelist = "a list in a Lua table", moduledict = "a Lua table", module = "nn.layer 'Name'",
  parameter = PLAIN, register_buffer = "nn.buffer(t)", lookuptable = "nn.Embedding(n, size)",
  functional = "cf for operations, nn for losses", identity = "'identity' as a layer in nn.Chain",
  softsign = ACTIVATION, swish = "cf.silu", leaky_relu = "cf.leakyrelu", log_softmax = "cf.logsoftmax",
  relu6 = "x:clamp(0, 6)",
  hardtanh = "x:clamp(-1, 1)", dataparallel = "cf.replicate(model)", distributeddataparallel = "cf.replicate(model)",
  distributed = "cf.dist, over processes, and cf.replicate with cf.withdevices, over devices",
  -- FluxMPI's and FluxDistributed's
  total_workers = "dist.size()", fluxmpi_print = "dist.print(..)", fluxmpi_println = "dist.println(..)",
  clean_print = "dist.print(..)", clean_println = "dist.println(..)", distributedoptimizer = "dist.Optimizer(opt)",
  distributedoptimiser = "dist.Optimizer(opt)", distributeddatacontainer = "dist.Data(data)",
  dataparalleldataloader = "cf.data.DataLoader, sharded after dist.init", syncgrads = "dist.allreduce_gradients(g)",
  dataparallelfluxmodel = "dist.Model(model)", fluxmpifluxmodel = "dist.Model(model)",
  dataparallelparamswrapper = "dist.Model(model)", getgrads = "dist.allreduce_gradients(g)",
  broadcast_parameters = "dist.bcast(x, root)", safe_allreduce = "dist.allreduce(op, x)",
  safe_bcast = "dist.bcast(x, root)", safe_reduce = "dist.reduce(op, root, x)", ensure_synced = "dist.same(x)",
  all_reduce = "cf.allreduce, over replicas, and dist.allreduce, over ranks", all_gather = "dist.allgather(x)",
  init_process_group = "dist.init()", get_rank = "dist.rank()", get_world_size = "dist.size()",
  -- losses
  cross_entropy = "nn.crossentropy(logits, ids)", crossentropyloss = "nn.crossentropy(logits, ids)",
  logitcrossentropy = "nn.crossentropy(logits, ids)", nllloss = "nn.crossentropy, of logits",
  nll_loss = "nn.crossentropy, of logits", classnllcriterion = "nn.crossentropy, of logits",
  crossentropycriterion = "nn.crossentropy(logits, ids)", mseloss = "nn.mse(x, y)", mse_loss = "nn.mse(x, y)",
  msecriterion = "nn.mse(x, y)", l1loss = "nn.mae(x, y)", l1_loss = "nn.mae(x, y)", abscriterion = "nn.mae(x, y)",
  smoothl1loss = "nn.huber(x, y)", huberloss = "nn.huber(x, y)", huber_loss = "nn.huber(x, y)",
  bceloss = "nn.bce, of logits", bcewithlogitsloss = "nn.bce(logits, p)", bcecriterion = "nn.bce, of logits",
  binary_cross_entropy = "nn.bce, of logits", binary_cross_entropy_with_logits = "nn.bce(logits, p)",
  binarycrossentropy = "nn.bce, of logits", logitbinarycrossentropy = "nn.bce(logits, p)",
  -- initialisers
  xavier_uniform_ = "nn.init.glorot_uniform(out, in)", xavier_normal_ = "nn.init.glorot_normal(out, in)",
  xavier_uniform = "nn.init.glorot_uniform(out, in)", xavier_normal = "nn.init.glorot_normal(out, in)",
  kaiming_uniform_ = "nn.init.kaiming_uniform(out, in)", kaiming_normal_ = "nn.init.kaiming_normal(out, in)",
  -- optimisers
  sgd = "optim.Descent(lr), or optim.Momentum(lr, rho)", weightdecay = DECAY, weight_decay = DECAY,
  clipgrad = "optim.ClipValue(limit)", clip_grad_norm_ = "optim.ClipNorm(limit) in an optim.Chain",
  clip_grad_value_ = "optim.ClipValue(limit) in an optim.Chain",
  optimiserchain = "optim.Chain(..)", optimizer = "optim.Adam and others", lr_scheduler = SCHEDULE, lambdalr = SCHEDULE,
  steplr = "optim.step(rate, every, factor) as the rate", exponentiallr = "optim.exponential(rate, factor) as the rate",
  cosineannealinglr = "optim.cosine(peak, steps) as the rate", onecyclelr = "optim.onecycle(peak, steps) as the rate",
  zero_grad = FRESH, zerogradparameters = FRESH, lbfgs = "Conflux has no second-order rules",
  -- gradients
  backward = GRADIENT, grad = GRADIENT, autograd = GRADIENT, gradients = GRADIENT, requires_grad = PLAIN,
  requires_grad_ = PLAIN, value_and_grad = GRADIENT, withjacobian = GRADIENT, params = "nn.parameters(model)",
  no_grad = "Conflux records only inside cf.withgradient",
  inference_mode = "Conflux records only inside cf.withgradient",
  state_dict = "the model itself: cf.save(path, model)", load_state_dict = "cf.load(path, {into = model})",
  -- devices
  cuda = MOVE, cpu = MOVE, gpu = MOVE, is_cuda = "x.device", is_available = "cf.info()", device_count = "#cf.devices()",
  manual_seed = "cf.seed(n)", setdefaulttensortype = "the option dtype", synchronize_devices = "cf.sync()",
  -- making tensors
  array = "cf.tensor(v)", as_tensor = "cf.tensor(v)", from_numpy = "cf.from(pointer, shape)", empty = "cf.zeros(..)",
  zeros_like = LIKE, ones_like = LIKE, rand_like = LIKE, randn_like = LIKE, full_like = LIKE, new_zeros = LIKE,
  one_hot = "cf.onehot(ids, n)", cat = "cf.concat(list, d)", hcat = "cf.concat(list, 2)", vcat = "cf.concat(list, 1)",
  concatenate = "cf.concat(list, d)", hstack = "cf.concat(list, 2)", vstack = "cf.concat(list, 1)",
  -- tensors
  view = "x:reshape(..)", view_as = "x:reshape(y.shape)", flatten = "x:reshape(-1), or nn.Flatten()",
  ravel = "x:reshape(-1)", numpy = "x:totable(), or x:pointer()", tolist = "x:totable()", dim = "x.ndim",
  ndimension = "x.ndim", nelement = "x:numel()", type = "x.dtype, or x:to(dtype)", astype = "x:to(dtype)",
  type_as = "x:to(y.dtype)", float = "x:to 'float32'", double = "x:to 'float64'", half = "x:to 'float16'",
  long = "x:to 'int64'", int = "x:to 'int32'", byte = "x:to 'uint8'", bool = "x:to 'bool'",
  bfloat16 = "x:to 'bfloat16'",
  ["repeat"] = "x:tile(..)", repeat_interleave = "x:tile(..)", expand_as = "x:expand(y.shape)",
  unbind = "x:split(1, d)",
  chunk = "x:split(size, d)", narrow = "x[{..}], with ranges {first, last}", select = "x[{..}], with positions",
  index_select = "x:index(d, ids)", take_along_dim = "x:gather(d, ids)", scatter_add = "x:scatteradd(d, ids, src)",
  scatter_add_ = "x:scatteradd(d, ids, src)", masked_fill = "cf.where(c, a, b)", masked_fill_ = "cf.where(c, a, b)",
  zero_ = "x:fill_(0)", zero = "x:fill_(0)", mm = "x:matmul(y)", bmm = "x:matmul(y)", mv = "x:matmul(y)",
  dot = "x:matmul(y)", logical_and = "cf.land", logical_or = "cf.lor", logical_not = "cf.lnot", isnan = "x:ne(x)",
  data = "x:detach()", swapaxes = "x:transpose(a, b)", movedim = "x:permute(..)", permutedims = "x:permute(..)",
  moveaxis = "x:permute(..)", ceil = "-(-x):floor()", einsum = "Conflux has no einsum; there is cf.matmul",
  cumsum = "Conflux has no cumulative sums", logsumexp = "-x:logsoftmax(d) + x, of any element",
  dataset = "a table of tensors, for cf.data.DataLoader", tensordataset = "a table of tensors, for cf.data.DataLoader",
}

-- Options of other libraries, and ours for them; a sentence if no option stands for one.
local OPTIONS = {
  weight_decay = "decay", lambda = "decay", momentum = "rho", alpha = "rho", epsilon = "eps",
  lr = "the rate is the first argument, as in optim.Adam(1e-3)",
  eta = "the rate is the first argument, as in optim.Adam(1e-3)",
  learning_rate = "the rate is the first argument, as in optim.Adam(1e-3)",
  params = "the parameters go to opt:setup(model)", nesterov = "that is a rule of its own, optim.Nesterov",
  batch_size = "batch", batchsize = "batch", drop_last = "last", partial = "last", num_workers = "threads",
  axis = "the dimension is an argument of its own", dim = "the dimension is an argument of its own",
  dims = "the dimension is an argument of its own", keepdims = "keepdim", unbiased = "correction",
  label_smoothing = "smoothing", ignore_index = "ignore", map_location = "device",
  elementwise_affine = "affine", padding = "pad", output_padding = "output_pad", track_running_stats = "track",
  count_include_pad = "count_pad", scale_factor = "the scale is the first argument, as in nn.Upsample(2)",
  num_classes = "classes", requires_grad = "a float tensor that a model holds is a parameter",
}

-- Other names of dtypes, and ours for them.
local DTYPES = {int = "int32", long = "int64", integer = "int64", short = "int32", byte = "uint8", char = "uint8",
  boolean = "bool", float = "float32", number = "float32", single = "float32", double = "float64", half = "float16",
  bf16 = "bfloat16", fp16 = "float16", fp32 = "float32", fp64 = "float64"}

names.theirs, names.their_options = THEIRS, OPTIONS

--- How many letters must be put in, left out, changed or swapped with a neighbour (Damerau 1964).
---@param a string
---@param b string
---@return integer
function names.distance(a, b)
  local last, row = nil, {}
  for j = 0, #b do row[j] = j end
  for i = 1, #a do
    local before = last
    last, row = row, {[0] = i}
    for j = 1, #b do
      local same = a:byte(i) == b:byte(j)
      row[j] = min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (same and 0 or 1))
      if before and j > 1 and a:byte(i) == b:byte(j - 1) and a:byte(i - 1) == b:byte(j) then
        row[j] = min(row[j], before[j - 2] + 1)
      end
    end
  end
  return row[#b]
end

--- How far a name may be from another to be meant by it.
---@param name string
---@return integer
function names.reach(name)
  return max(1, floor(#name / 3))
end

-- The name in a table that is nearest to `key`, letters being equal whatever their case, if one is near enough; and
-- how far it is.
local function nearest(room, key)
  local best, least
  local wanted = key:lower()
  for name in each, room do
    if type(name) == "string" and not name:find "^_" and abs(#name - #key) <= names.reach(key) then
      local d = names.distance(wanted, name:lower())
      if d <= names.reach(key) and (not least or d < least or d == least and name < best) then best, least = name, d end
    end
  end
  return best, least
end

local rooms = {} -- of guard, by path in order: {path, table}

-- The thing of this very name in another room.
local function elsewhere(room, key)
  for i = 1, #rooms do
    local path, other = rooms[i][1], rooms[i][2]
    if other ~= room and rawget(other, key) ~= nil then return path .. key end
  end
end

--- Guesses the name that is meant by one that a room lacks: "; here it is nn.Dense(in, out)", or "".
---@param room table
---@param path string  the text before a name in it: "nn."
---@param key string
---@return string
function names.hint(room, path, key)
  if #key > 40 then return "" end
  local near, far = nearest(room, key)
  if near and far == 0 then return ("; it is spelled %s%s"):format(path, near) end
  local theirs = THEIRS[key:lower()]
  if theirs then return (theirs:find "^Conflux" and ": " or "; here it is ") .. theirs end
  local there = elsewhere(room, key)
  if there then return "; there is " .. there end
  return near and ("; the nearest is %s%s"):format(path, near) or ""
end

--- Guesses the option that is meant by one that a function does not know: a sentence, or nil.
---@param key string
---@param known string[]
---@return string?
function names.option_hint(key, known)
  local theirs = OPTIONS[key]
  if theirs and theirs:find " " then return theirs end
  local options = {}
  for i = 1, #known do options[known[i]] = true end
  local meant = theirs and options[theirs] and theirs or nearest(options, key)
  return meant and ("'%s' is meant?"):format(meant) or nil
end

--- The dtype that is meant by the name of none, or nil.
---@param key string
---@return string?
function names.dtype(key)
  return DTYPES[key:lower():gsub("^torch%.", "")] or nearest(core.dtype, key)
end

--- Takes note of a table of public names, which others' messages may point to.
---@param room table
---@param path string  the text before a name in it: "nn."
function names.add(room, path)
  rooms[#rooms + 1] = {path, room}
end

--- Makes such a table raise where a script asks for a name that it lacks.  Names with an underscore in front are
-- nobody's, and nil.
---@param room table
---@param path string  the text before a name in it: "nn."
function names.guard(room, path)
  names.add(room, path)
  setmetatable(room, {__index = function(_, key)
    if type(key) ~= "string" or key:find "^_" then return nil end
    local shown = (path .. key):sub(1, 60):gsub("%c", "?")
    core.raise(("conflux: there is no '%s'%s"):format(shown, names.hint(room, path, key)))
  end})
end

return names

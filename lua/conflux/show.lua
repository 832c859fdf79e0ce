--- Printing tensors, as Torch does: rows of aligned values in one format, then "[2x3 float32, cpu:0]".
--
-- A tensor of more than 1,000 elements shows three at each end of its long dimensions; only those are read.
-- @module conflux.show
local core   = require "conflux.core"
local tensor = require "conflux.tensor"

local C = core.C
local concat, floor, format, rep = table.concat, math.floor, string.format, string.rep
local huge, max = math.huge, math.max
local tonumber, tostring = tonumber, tostring

local MANY, EDGE, WIDTH = 1000, 3, 80 -- elements shown in full, elements at an end, columns of a line

-- ---- which values -----------------------------------------------------------------------------------------

-- The values to show, row-major; the shape that they have; per dimension whether its middle is left out.
local function pick(x)
  local view, shape, cut = x:detach(), tensor.shape_of(x), {}
  if tensor.numel(x) > MANY then
    for d = 1, x._ndim do
      if shape[d] > 2 * EDGE then
        local head = tensor.slice(view, d - 1, 0, EDGE, 1)
        local tail = tensor.slice(view, d - 1, shape[d] - EDGE, EDGE, 1)
        local both = core.new()
        local array = core.ptrs {head, tail}
        local st = C.cfx_concat(2, array, d - 1, both)
        if st ~= 0 then core.settle(st, C.cfx_concat, 2, array, d - 1, both) end
        C.cfx_release(head)
        C.cfx_release(tail)
        C.cfx_release(view)
        view, shape[d], cut[d] = both, 2 * EDGE, true
      end
    end
  end
  local array, n, dtype = tensor.read(view)
  C.cfx_release(view)
  return array, n, shape, cut, dtype
end

-- ---- one format for all values ----------------------------------------------------------------------------

local function special(v)
  return v ~= v and "nan" or v == huge and "inf" or v == -huge and "-inf" or nil
end

-- "%.0f" for whole numbers, "%.4f", or "%.4e" where that would be long or show nothing.
local function choose(values, n)
  local most, least, whole = 0, huge, true
  for i = 0, n - 1 do
    local v = tonumber(values[i])
    if not special(v) then
      local size = v < 0 and -v or v
      most = max(most, size)
      if size > 0 and size < least then least = size end
      whole = whole and v == floor(v)
    end
  end
  if whole and most < 1e9 then return "%.0f" end
  return most < 1e6 and (least >= 1e-4 or least == huge) and "%.4f" or "%.4e"
end

-- The values as texts of one width.
local function texts(values, n, dtype)
  local list, width = {}, 0
  local name = core.dtypes[dtype]
  local style = name:find "float" and choose(values, n)
  for i = 1, n do
    local v = values[i - 1]
    local text
    if name == "bool" then text = v ~= 0 and "true" or "false"
    elseif name == "int64" then text = tostring(v):match "^-?%d+"
    elseif not style then text = format("%d", v)
    else text = special(v) or format(style, v) end
    list[i], width = text, max(width, #text)
  end
  return list, width
end

-- ---- rows -------------------------------------------------------------------------------------------------

-- One row: texts from..from + n - 1, right-aligned, "..." where the middle is left out.
local function row(list, from, first, last, width, cut)
  local cells = {}
  for k = first, last do
    local text = list[from + k]
    cells[#cells + 1] = rep(" ", width - #text) .. text
    if cut and k == EDGE - 1 then cells[#cells + 1] = "..." end
  end
  return " " .. concat(cells, "  ")
end

-- A matrix, or a vector as one row; too wide ones in blocks of columns.
local function matrix(lines, list, from, rows, columns, width, cut_rows, cut_columns)
  local block = max(1, floor((WIDTH + 1) / (width + 2)))
  if cut_columns then block = columns end
  for first = 0, columns - 1, block do
    local last = first + block < columns and first + block - 1 or columns - 1
    if block < columns and rows > 1 then
      if first > 0 then lines[#lines + 1] = "" end
      lines[#lines + 1] = first == last and ("column %d"):format(first + 1)
        or ("columns %d to %d"):format(first + 1, last + 1)
    end
    for r = 0, rows - 1 do
      lines[#lines + 1] = row(list, from + r * columns, first, last, width, cut_columns)
      if cut_rows and r == EDGE - 1 then lines[#lines + 1] = rep(" ", max(0, width - 2)) .. "..." end
    end
  end
end

-- "(1,2,.,.) =" over each matrix of a tensor of more dimensions.
local function matrices(lines, list, shape, sizes, cut, width)
  local n = #shape
  local rows, columns = shape[n - 1], shape[n]
  local at = {}
  for d = 1, n - 2 do at[d] = 0 end
  local from = 1
  repeat
    local names, gap, is_first = {}, false, true
    for d = n - 2, 1, -1 do
      local p = at[d] + 1
      names[d] = tostring(cut[d] and p > EDGE and sizes[d] - 2 * EDGE + p or p)
      gap = gap or (is_first and cut[d] and at[d] == EDGE) -- the omitted part lies before this matrix
      is_first = is_first and at[d] == 0
    end
    if gap then lines[#lines + 1] = "...\n" end
    lines[#lines + 1] = ("(%s,.,.) ="):format(concat(names, ","))
    matrix(lines, list, from, rows, columns, width, cut[n - 1], cut[n])
    lines[#lines + 1] = ""
    from = from + rows * columns
    local d = n - 2
    while d >= 1 do
      at[d] = at[d] + 1
      if at[d] < shape[d] then break end
      at[d] = 0
      d = d - 1
    end
  until d == 0
  lines[#lines] = nil
end

--- The text of a tensor.  Waits for its values.
---@param x conflux.Tensor
---@return string
local function show(x)
  local device = C.cfx_tensor_device(x)
  if device == nil then return "[released tensor]" end
  local sizes = tensor.shape_of(x)
  local suffix = ("[%s%s%s, %s]"):format(concat(sizes, "x"), #sizes > 0 and " " or "", core.dtypes[x._dtype],
    tostring(core.find_device(device)))
  if tensor.numel(x) == 0 then return suffix end

  local values, n, shape, cut, dtype = pick(x)
  if #shape == 0 then
    local name, v = core.dtypes[dtype], values[0]
    local digits = name == "float64" and "%.14g" or name == "float32" and "%.7g"
    return (digits and (special(v) or format(digits, v)) or texts(values, 1, dtype)[1]) .. " " .. suffix
  end

  local list, width = texts(values, n, dtype)
  local lines = {}
  if #shape == 1 then
    matrix(lines, list, 1, 1, shape[1], width, false, cut[1])
  elseif #shape == 2 then
    matrix(lines, list, 1, shape[1], shape[2], width, cut[1], cut[2])
  else
    matrices(lines, list, shape, sizes, cut, width)
  end
  lines[#lines + 1] = suffix
  return concat(lines, "\n")
end

core.tensor_meta.__tostring = show

return show

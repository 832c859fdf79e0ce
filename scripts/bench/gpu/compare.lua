--- gpu.lua --compare: what two benchmarks wrote, as a Markdown table.

-- Ways in which peer_gpu.py does the same work; the last word of its figures' names.
local WAYS = {eager = true, unfused = true, compiled = true, graphs = true, pageable = true, pinned = true}

-- The figures of a file, and their names in its order; nil if it cannot be read.
local function figures_of(path)
  local file, problem = io.open(path)
  if not file then
    io.stderr:write("gpu.lua: ", problem, "\n")
    return nil
  end
  local figures, names = {}, {}
  for line in file:lines() do
    local name, value, unit = line:match "^figure (%S+) (%S+) (%S+)"
    if name and tonumber(value) then
      if not figures[name] then names[#names + 1] = name end
      figures[name] = {value = tonumber(value), unit = unit}
    end
  end
  file:close()
  return figures, names
end

-- peer_adam_gb_per_s_eager is what PyTorch's eager way makes of adam_gb_per_s.
local function by_work(figures, names)
  local peers = {}
  for _, full in ipairs(names) do
    local name, way = full:match "^peer_(.+)_(%a+)$"
    if not WAYS[way] then name, way = full:match "^peer_(.+)$", nil end
    if name then
      peers[name] = peers[name] or {}
      table.insert(peers[name], {way = way, value = figures[full].value})
    end
  end
  return peers
end

-- Units of which less is better.
local FALLS = {us = true, B = true}

-- Of a figure's limit: "0.91 of peak", "1.13 over floor".  Both are ratios under the same name but for the unit.
local ENDINGS = {"_us", "_gb_per_s", "_tflops", "_samples_per_s"}
local LIMITS = {"of_peak", "of_bandwidth", "of_step", "over_floor"}

local function limit_text(figures, name)
  for _, ending in ipairs(ENDINGS) do
    local base = name:sub(-#ending) == ending and name:sub(1, -#ending - 1)
    for _, limit in ipairs(LIMITS) do
      local share = base and figures[base .. "_" .. limit]
      if share then return ("%.2f %s"):format(share.value, (limit:gsub("_", " "))) end
    end
  end
  return ""
end

local function number(v)
  if v >= 1000 then return ("%.0f"):format(v) end
  return ("%.3g"):format(v)
end

local function peer_text(list, unit)
  local parts, best = {}, nil
  for _, entry in ipairs(list) do
    parts[#parts + 1] = number(entry.value) .. (entry.way and " " .. entry.way or "")
    if not best or (entry.value < best) == (FALLS[unit] or false) then best = entry.value end
  end
  return table.concat(parts, ", "), best
end

--- Prints the table; false if a file cannot be read.
---@param ours string
---@param theirs? string
---@return boolean
return function(ours, theirs)
  local figures, names = figures_of(ours)
  local peers = {}
  if not figures then return false end
  if theirs then
    local peer_figures, peer_names = figures_of(theirs)
    if not peer_figures then return false end
    peers = by_work(peer_figures, peer_names)
  end
  print "| figure | Conflux | its limit | PyTorch | times as fast as its best |"
  print "|---|---|---|---|---|"
  for _, name in ipairs(names) do
    local f, list = figures[name], peers[name]
    local unit = f.unit == "us" and "µs" or f.unit
    local cells = {name, number(f.value) .. " " .. unit, limit_text(figures, name), "", ""}
    if list then
      local text, best = peer_text(list, f.unit)
      local ratio = FALLS[f.unit] and best / f.value or f.value / best
      cells[4], cells[5] = text, ("%.2f"):format(ratio)
    end
    if f.unit ~= "ratio" and not name:find "floor" then print("| " .. table.concat(cells, " | ") .. " |") end
  end
  return true
end

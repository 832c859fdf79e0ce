--- Ways and circles in a graph, of which a list has the nodes and edges[from][to] is what makes an edge.
local graph = {}

--- The strongly connected components of two nodes or more (Tarjan), each in the order of its labels.
function graph.circles(nodes, edges)
  local circles, stack, number, low, on_stack, count = {}, {}, {}, {}, {}, 0
  local function visit(node)
    count = count + 1
    number[node], low[node], on_stack[node] = count, count, true
    stack[#stack + 1] = node
    for to in pairs(edges[node]) do
      if not number[to] then
        visit(to)
        low[node] = math.min(low[node], low[to])
      elseif on_stack[to] then
        low[node] = math.min(low[node], number[to])
      end
    end
    if low[node] == number[node] then
      local circle = {}
      repeat
        local top = table.remove(stack)
        on_stack[top] = nil
        circle[#circle + 1] = top
      until top == node
      if #circle > 1 then
        table.sort(circle, function(a, b) return a.label < b.label end)
        circles[#circles + 1] = circle
      end
    end
  end
  for _, node in ipairs(nodes) do
    if not number[node] then visit(node) end
  end
  table.sort(circles, function(a, b) return a[1].label < b[1].label end)
  return circles
end

--- A node and what it uses, itself and through others, or only what it so includes: a set.
function graph.reached(edges, node, only_includes, set)
  set = set or {}
  if set[node] then return set end
  set[node] = true
  for to, edge in pairs(edges[node]) do
    if edge.includes or not only_includes then graph.reached(edges, to, only_includes, set) end
  end
  return set
end

--- The shortest way round within a circle that passes a file of the room: its nodes, the first again at the end.
function graph.way_round(edges, circle, room)
  local within, best = {}, nil
  for _, node in ipairs(circle) do within[node] = true end
  for _, start in ipairs(circle) do
    local before, queue = {}, {start}
    for _, node in ipairs(start.room == room and queue or {}) do -- it grows meanwhile
      for to in pairs(not before[start] and edges[node] or {}) do
        if within[to] and not before[to] then
          before[to] = node
          queue[#queue + 1] = to
        end
      end
    end
    local way = {start}
    while before[start] and (#way == 1 or way[1] ~= start) do table.insert(way, 1, before[way[1]]) end
    if #way > 1 and (not best or #way < #best) then best = way end
  end
  return best
end

return graph

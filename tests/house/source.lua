--- Reads C or CUDA files for tests/house: their code without comments, and their pointers to functions.
local source = {}

--- The text without its comments, of which only the line breaks stay; and the same with empty literals.
function source.code(text)
  local code, bare, at = {}, {}, 1
  local function keep(to, hidden)
    local part = text:sub(at, to)
    code[#code + 1], bare[#bare + 1] = part, hidden or part
    at = to + 1
  end
  while true do
    local from, _, mark = text:find("([/\"'])", at)
    if not from then break end
    keep(from - 1)
    local _, comment = text:find("^/%*.-%*/", from)
    if not comment then _, comment = text:find("^//[^\n]*", from) end
    if comment then
      local rest = " " .. text:sub(from, comment):gsub("[^\n]", "")
      code[#code + 1], bare[#bare + 1] = rest, rest
      at = comment + 1
    elseif mark == "/" then
      keep(from)
    else
      local to = from + 1
      while text:find("^[^\n" .. mark .. "]", to) do to = to + (text:sub(to, to) == "\\" and 2 or 1) end
      keep(to, mark .. mark)
    end
  end
  keep(#text)
  return table.concat(code), table.concat(bare)
end

--- How many lines of the code are not blank.
function source.lines(code)
  local n = 0
  for line in code:gmatch "[^\n]+" do
    if line:find "%S" then n = n + 1 end
  end
  return n
end

--- The paths in quotes that it includes.
function source.includes(code)
  local list = {}
  for path in ("\n" .. code):gmatch '\n[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"' do list[#list + 1] = path end
  return list
end

local pointer = "%(%s*%*+%s*([%a_][%w_]*)%s*%)%s*%("

--- Adds to `types` the names that the bare code gives to types of pointers to functions.
function source.pointer_types(bare, types)
  for name in bare:gmatch("typedef[^;{]-" .. pointer) do types[name] = true end
end

-- The name of a declared field or parameter, if that is a pointer to a function, or to a table of them.
local function pointer_in(declaration, types)
  local name = declaration:match(pointer)
  if name then return name end
  local type, rest = declaration:gsub("%f[%w_]const%f[^%w_]", ""):match "^%s*([%a_][%w_]*)(.*)$"
  if type and types[type] then return rest:match "^[%s*]*([%a_][%w_]*)" or type end
end

local structs = "struct%s*([%w_]*)%s*(%b{})%s*([%w_]*)"

--- Its structs: a list of {name, body}.
function source.structs(bare)
  local list = {}
  for tag, body, alias in bare:gmatch(structs) do
    list[#list + 1] = {name = tag ~= "" and tag or alias, body = body}
  end
  return list
end

--- The fields of its structs that point to functions: field -> the struct's name.
function source.pointer_fields(bare, types)
  local fields = {}
  for _, struct in ipairs(source.structs(bare)) do
    for declaration in struct.body:sub(2, -2):gmatch "[^;]+" do
      local name = pointer_in(declaration, types)
      if name then fields[name] = struct.name end
    end
  end
  return fields
end

--- The functions that it declares and that take a pointer to a function: a set of names.
function source.takers(bare, types)
  local takers = {}
  for name, parameters in bare:gsub(structs, ""):gmatch "([%a_][%w_]*)%s*(%b())%s*[;{]" do
    -- a comma within a pointer's own parameters cuts it in two, of which the first is enough
    for declaration in parameters:sub(2, -2):gmatch "[^,]+" do
      if pointer_in(declaration, types) then takers[name] = true end
    end
  end
  return takers
end

--- Its assignments to fields, by = or in an initialiser that names the field: field -> list of names.
function source.assigned(bare)
  local fields = {}
  for field, name in bare:gmatch "[.>]%s*([%a_][%w_]*)%s*=%s*&?([%a_][%w_]*)%s*[,;}]" do
    fields[field] = fields[field] or {}
    table.insert(fields[field], name)
  end
  return fields
end

--- The names in the initialisers that name no field: the type's name -> list of names.
function source.initialised(bare)
  local by_type = {}
  local function add(type, body)
    if body:find "%.%s*[%a_][%w_]*%s*=" then return end
    by_type[type] = by_type[type] or {}
    for name in body:gmatch "[%a_][%w_]*" do table.insert(by_type[type], name) end
  end
  for type, body in bare:gmatch "([%a_][%w_]*)%s+[%a_][%w_]*%s*=%s*(%b{})" do add(type, body) end
  for type, body in bare:gmatch "([%a_][%w_]*)%s+[%a_][%w_]*%s*%b[]%s*=%s*(%b{})" do add(type, body) end
  return by_type
end

--- The names before a parenthesis, and those of fields and of their elements among them: two sets.
function source.called(bare)
  local names, fields = {}, {}
  for name in bare:gmatch "([%a_][%w_]*)%s*%(" do names[name] = true end
  for field in bare:gmatch "[.>]([%a_][%w_]*)%s*%(" do fields[field] = true end
  for field in bare:gmatch "[.>]([%a_][%w_]*)%s*%b[]%s*%(" do fields[field] = true end
  return names, fields
end

return source

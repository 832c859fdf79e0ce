std = "luajit"
max_line_length = 120
self = false
files["tests/spec"] = {std = "+busted"}

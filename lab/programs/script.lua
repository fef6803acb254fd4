-- Tables and strings that come and go. lua script.lua COUNT
local count, sum, kept = tonumber(arg[1]), 0, {}
for number = 1, count do
  local words = {}
  for word = 1, 8 do words[word] = "word " .. number * word % 1009 end
  local text = table.concat(words, " ")
  kept[number % 5003] = { number = number, words = words, text = text }
  sum = (sum * 31 + #text) % 1000000007
end
local function tree(depth) return depth > 0 and { tree(depth - 1), tree(depth - 1) } or {} end
local function size(node) return 1 + (node[1] and size(node[1]) + size(node[2]) or 0) end
for _ = 1, 4 do sum = sum + size(tree(14)) end
for number = 0, 5002 do
  for word in (kept[number] and kept[number].text or ""):gmatch("%d+") do sum = sum + tonumber(word) end
end
print(string.format("%d", sum))

# A redis-server on a socket of its own under a fixed load. sh redis.sh REDIS-SERVER REQUESTS
# Prints what the server has at the end, which depends on the requests only.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
socket=$folder/socket
"$1" --port 0 --save '' --appendonly no --unixsocket "$socket" --dir "$folder" >/dev/null &
server=$!
# What only watches and loads the server is not to be measured under its allocator.
unset LD_PRELOAD
tries=0
until redis-cli -s "$socket" ping >/dev/null 2>&1; do
    tries=$((tries + 1))
    [ "$tries" -lt 200 ] || { echo "the server does not answer" >&2; exit 1; }
    sleep 0.05
done
redis-benchmark -s "$socket" -q -P 16 -c 20 -d 400 -n "$2" -t set,get,lpush,rpop,sadd,hset >/dev/null
redis-cli -s "$socket" eval '
local sum = 0
for number = 1, 60000 do
  redis.call("set", "key:" .. number % 9973, string.rep("x", number % 700))
  redis.call("rpush", "list:" .. number % 97, number)
end
for number = 0, 9972 do sum = sum + redis.call("strlen", "key:" .. number) end
for number = 0, 96 do sum = sum + redis.call("llen", "list:" .. number) end
return sum' 0
redis-cli -s "$socket" llen mylist
redis-cli -s "$socket" dbsize
redis-cli -s "$socket" shutdown nosave 2>/dev/null || true
wait "$server"

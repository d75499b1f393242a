"""The scripts by which Redis or Valkey keeps leases and views. Redis runs each script as one step.

All of this state is one hash, so that Redis loses it whole or not at all, even if it evicts keys. Its fields:

- ``inc``, ``run``: the incarnation, and the ``run_id`` of the Redis process that began it; ``open``: 1 or 0
- ``v``, ``seats``, ``ids``: number, packed seats and node names of the newest view; ``vs``, ``settled``:
  number and seats of the settled view; ``need``: names of all nodes of the views from the settled one on
- ``beats``, ``tokens``: the last numbers given, so that none is given twice in an incarnation
- ``n:<node>``: ``boot token count acked retired forgotten``. If ``boot`` is ``-``, no process has had the
  node's seat yet. If it is ``@<inc>``, the seat is kept for the process that had it when that incarnation
  ended

Redis expires none of these fields, because it would judge by the wall clock. Instead, the nodes find out
whose lease is over.
"""

_BEGIN = """
local key = KEYS[1]
local state, flat = {}, redis.call('HGETALL', key)
for i = 1, #flat, 2 do state[flat[i]] = flat[i + 1] end
local run = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')

local function set(field, value)
  state[field] = value
  redis.call('HSET', key, field, value)
end
local function next_number(field)
  local number = string.format('%.0f', tonumber(state[field] or '0') + 1)
  set(field, number)
  return number
end
local function is_open(inc)
  return state.inc == inc and state.run == run and state.open == '1'
end
local function names(field)
  local found = {}
  for name in string.gmatch(state[field] or '', '%S+') do found[name] = true end
  return found
end
local function record(node)
  local packed = state['n:' .. node]
  if not packed then return nil end
  local boot, token, count, acked, retired, forgotten =
    string.match(packed, '^(%S+) (%S+) (%S+) (%S+) (%S+) (%S+)$')
  return {boot = boot, token = token, count = count, acked = acked, retired = retired, forgotten = forgotten}
end
local function keep(node, one)
  local fields = {one.boot, one.token, one.count, one.acked, one.retired, one.forgotten}
  set('n:' .. node, table.concat(fields, ' '))
end
local function settle()
  local need = names('need')
  for node in pairs(need) do
    local one = record(node)
    if one.retired ~= '1' and tonumber(one.acked) < tonumber(state.v) then return end
  end
  local ids = names('ids')
  for node in pairs(need) do
    if not ids[node] and record(node).forgotten ~= '1' then
      state['n:' .. node] = nil
      redis.call('HDEL', key, 'n:' .. node)
    end
  end
  set('vs', state.v)
  set('settled', state.seats)
  set('need', state.ids)
end
"""

BEAT = (
    _BEGIN
    + """
local node, boot, acked_inc, acked, fresh_inc = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local known_inc, kept_inc = ARGV[6], ARGV[7]
if state.inc == nil or state.run ~= run then
  redis.call('DEL', key)
  state = {}
  set('inc', fresh_inc)
  set('run', run)
  set('open', '0')
end
local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
if state.open ~= '1' then return {state.inc, 1, now_ms} end

local one, token, taken = record(node), '', 0
if one and string.sub(one.boot, 1, 1) == '@' and one.retired ~= '1' then
  -- Only a node that knows this incarnation can say what it had when the one before ended.
  if known_inc ~= state.inc then return {state.inc, 2, now_ms} end
  if one.boot == '@' .. kept_inc then
    one.boot = boot
    keep(node, one)
  end
end
if one and one.forgotten == '1' and one.boot ~= boot then
  one.forgotten = '0'
  keep(node, one)
end
if names('ids')[node] then
  if one.boot ~= boot and one.boot ~= '-' and one.retired ~= '1' then
    taken = 1
  else
    if one.token == '0' or one.retired == '1' then one.token = next_number('tokens') end
    one.boot, one.retired, one.count = boot, '0', next_number('beats')
    token = one.token
    keep(node, one)
  end
end
if one and one.boot == boot and acked_inc == state.inc and tonumber(acked) > tonumber(one.acked) then
  one.acked = acked
  keep(node, one)
end
if state.v then settle() end

local records = {}
for other in pairs(names('need')) do
  local its = record(other)
  local count, acked = tonumber(its.count), tonumber(its.acked)
  records[#records + 1] = {other, count, acked, tonumber(its.retired), tonumber(its.forgotten)}
end
return {
  state.inc, 0, now_ms, token, taken, one and tonumber(one.forgotten) or 0,
  tonumber(state.v or '0'), state.seats or '', tonumber(state.vs or '0'), state.settled or '', records
}
"""
)

PEEK = "return redis.call('HMGET', KEYS[1], 'v', 'seats')"

OPEN = (
    _BEGIN
    + """
if state.inc == ARGV[1] and state.run == run then set('open', '1') end
"""
)

RETIRE = (
    _BEGIN
    + """
local inc, node, count = ARGV[1], ARGV[2], ARGV[3]
local one = is_open(inc) and record(node)
if not one or one.count ~= count or not names('need')[node] then return 0 end
one.retired = '1'
keep(node, one)
settle()
return 1
"""
)

PROPOSE = (
    _BEGIN
    + """
local inc, base, seats, ids, kept_inc = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
if kept_inc ~= '' then
  if state.inc ~= inc or state.run ~= run or state.open == '1' then return 0 end
  set('open', '1')
end
if not is_open(inc) or base ~= (state.v or '0') then return 0 end
local time = redis.call('TIME')
local number = math.max(tonumber(base) + 1, tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000))
local first, need, before = state.v == nil, names('need'), names('ids')
set('v', string.format('%.0f', number))
set('seats', seats)
set('ids', ids)
for node in string.gmatch(ids, '%S+') do
  need[node] = true
  local one = record(node)
  if not one or (one.retired == '1' and not before[node]) then
    -- It has the time of a lease for its first beat.
    one = one or {acked = '0', forgotten = '0'}
    one.boot, one.token, one.count, one.retired = '-', '0', next_number('beats'), '0'
    if kept_inc ~= '' then one.boot = '@' .. kept_inc end
    keep(node, one)
  end
end
local all = {}
for node in pairs(need) do all[#all + 1] = node end
set('need', table.concat(all, ' '))
if first then
  set('vs', state.v)
  set('settled', seats)
end
return number
"""
)

FORGET = (
    _BEGIN
    + """
local one = is_open(ARGV[1]) and record(ARGV[2])
if one then
  one.forgotten = '1'
  keep(ARGV[2], one)
end
"""
)

APPEND = """
local how, least = 'MAXLEN', ARGV[1]
if ARGV[4] ~= '' then
  local time = redis.call('TIME')
  local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
  how, least = 'MINID', string.format('%.0f', now_ms - tonumber(ARGV[4]) * 1000)
end
local position = redis.call('XADD', KEYS[1], how, '~', least, '*', 'e', ARGV[2])
if ARGV[3] ~= '0' then redis.call('EXPIRE', KEYS[1], ARGV[3]) end
return position
"""

CLAIM = """
local value = redis.call('HGET', KEYS[1], ARGV[1])
if not value or (ARGV[3] == '1' and value == ARGV[4]) then
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
  return ARGV[2]
end
return value
"""

RELEASE = """
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end
return redis.call('HDEL', KEYS[1], ARGV[1])
"""

KEEP = """
local found = 0
for _, key in ipairs(KEYS) do found = found + redis.call('EXPIRE', key, ARGV[1]) end
return found
"""

-- For wrk: appends to streams in turns. Arguments: file with the body, number of streams.

local number, streams, rest = 0, 1, ""

function init(args)
   local file = assert(io.open(args[1], "rb"))
   local body = file:read("*a")
   file:close()
   streams = tonumber(args[2])
   rest = " HTTP/1.1\r\nHost: " .. wrk.host .. "\r\nContent-Type: application/json\r\n"
      .. "Content-Length: " .. #body .. "\r\n\r\n" .. body
end

function request()
   number = number + 1
   return "POST /v1/streams/order-" .. (number % streams) .. rest
end

function done(summary, latency)
   local errors = summary.errors
   io.write(string.format(
      '\n{"requests": %d, "duration_us": %d, "p50_us": %d, "p99_us": %d, "failed": %d}\n',
      summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
      errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end

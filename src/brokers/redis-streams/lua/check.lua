-- What the node of a stream says about itself: INFO has no key, so in a cluster it would be asked of any node.
--
-- KEYS[1]  stream
-- returns  INFO

return redis.call('INFO')

-- What the node of a key says about itself: INFO has no key, so in a cluster it would be asked of any node.
--
-- KEYS[1]  any key of that node
-- returns  INFO

return redis.call('INFO')

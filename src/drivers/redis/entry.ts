/**
 * The fields of a stream entry: the event in structured mode, and where an outbox wants it to go. A stream entry costs
 * the server, the wire and both ends per field, and JSON embedded in JSON costs nothing.
 */
export const ENTRY_EVENT = 'event'
export const ENTRY_TOPIC = 'topic'

/**
 * A client without some of its fields, as a later version of it may be. What its methods return or resolve to lacks them
 * too: `duplicate()` and `connect()` make more of its kind. Methods run on the client itself, whose own code needs them.
 */
export function hiding<T extends object>(client: T, ...fields: readonly string[]): T {
  const hidden = (value: unknown): unknown => (isInstance(value) ? hiding(value, ...fields) : value)
  return new Proxy(client, {
    has: (target, name) => !fields.includes(String(name)) && name in target,
    get(target, name) {
      if (fields.includes(String(name))) return undefined
      const value: unknown = Reflect.get(target, name, target)
      if (typeof value !== 'function') return value
      return (...args: unknown[]) => {
        const result = value.apply(target, args) as unknown
        return result instanceof Promise ? result.then(hidden) : hidden(result)
      }
    },
  })
}

/** Of a class of the client's, such as a connection; not data, bytes or what is thrown. */
function isInstance(value: unknown): value is object {
  return (
    typeof value === 'object' &&
    value !== null &&
    typeof (value as { on?: unknown }).on === 'function' &&
    !(value instanceof Uint8Array)
  )
}

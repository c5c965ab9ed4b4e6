/** Whether an object has these methods: how a client is recognised without importing its package. */
export function has(given: unknown, ...methods: string[]): boolean {
  if ((typeof given !== 'object' && typeof given !== 'function') || given === null) return false
  return methods.every((method) => typeof (given as Record<string, unknown>)[method] === 'function')
}

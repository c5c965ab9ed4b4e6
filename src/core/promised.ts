/** What `fn` answers or throws, as a promise. An async function says the same, and costs every message more. */
export function promised<T>(fn: () => T | PromiseLike<T>): Promise<T> {
  try {
    return Promise.resolve(fn())
  } catch (error) {
    return Promise.reject(error)
  }
}

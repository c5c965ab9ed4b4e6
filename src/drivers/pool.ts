/** The `max` that a pool was made with. Both pg and postgres.js keep their options, with their defaults filled in. */
export function poolSize(pool: { readonly options?: { readonly max?: unknown } }): number | undefined {
  const max = Number(pool.options?.max)
  return Number.isInteger(max) && max > 0 ? max : undefined
}

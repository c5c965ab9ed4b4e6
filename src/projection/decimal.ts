/** A decimal number without loss: `digits` × 10^-`scale`. */
interface Decimal {
  readonly digits: bigint
  readonly scale: number
}

const DECIMAL = /^(-?)(\d+)(?:\.(\d+))?(?:e([+-]?\d+))?$/i
/** Numbers have exponents up to 308; a text with a larger one is left to the database. */
const MAX_EXPONENT = 400

/**
 * The sum of two numbers as text, exact, as PostgreSQL adds numerics: 0.1 and 0.2 are 0.3. `undefined` where one of them
 * is no decimal number.
 */
export function sum(a: unknown, b: unknown): string | undefined {
  const [left, right] = [decimalOf(a), decimalOf(b)]
  if (left === undefined || right === undefined) return undefined
  const scale = Math.max(left.scale, right.scale)
  return text({ digits: scaled(left, scale) + scaled(right, scale), scale })
}

function decimalOf(value: unknown): Decimal | undefined {
  if (typeof value !== 'number' && typeof value !== 'bigint' && typeof value !== 'string') return undefined
  const match = DECIMAL.exec(String(value))
  if (match === null) return undefined
  const [, sign, whole, fraction = '', exponent = '0'] = match
  const digits = BigInt(`${whole}${fraction}`)
  const scale = fraction.length - Number(exponent)
  if (Math.abs(scale) > MAX_EXPONENT) return undefined
  const signed = sign === '-' ? -digits : digits
  return scale < 0 ? { digits: signed * 10n ** BigInt(-scale), scale: 0 } : { digits: signed, scale }
}

function scaled({ digits, scale }: Decimal, to: number): bigint {
  return digits * 10n ** BigInt(to - scale)
}

function text({ digits, scale }: Decimal): string {
  if (scale === 0) return String(digits)
  const sign = digits < 0n ? '-' : ''
  const padded = String(digits < 0n ? -digits : digits).padStart(scale + 1, '0')
  return `${sign}${padded.slice(0, -scale)}.${padded.slice(-scale)}`
}

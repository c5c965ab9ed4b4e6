import { WaybillError } from '../core/index.ts'
import type { Settlement } from './source.ts'

type Dead = Extract<Settlement, { kind: 'dead' }>

/**
 * What is written where a source refused a settlement for what it says: a text, a delay, a number. Nothing of that is left,
 * only a short reason in plain ASCII. `undefined` for what says nothing (it was handled, it is given back) and for what is
 * as plain already: a message that was handled is never called dead.
 */
export function plainDead(settlement: Settlement, error: unknown): Dead | undefined {
  if (settlement.kind === 'done' || settlement.kind === 'release' || isRefusal(settlement)) return undefined
  const reason = `its settlement was refused: ${codeOf(error)}`
  return { kind: 'dead', reason, error: new WaybillError('SETTLEMENT_REFUSED', reason) }
}

/** Whether it was made by `plainDead`. */
function isRefusal(settlement: Settlement): boolean {
  if (settlement.kind !== 'dead') return false
  return settlement.error instanceof WaybillError && settlement.error.code === 'SETTLEMENT_REFUSED'
}

function codeOf(error: unknown): string {
  try {
    const { code, name } = error as { code?: unknown; name?: unknown }
    for (const text of [code, name]) if (typeof text === 'string' && /^[\w.-]{1,40}$/.test(text)) return text
  } catch {
    // A getter that throws: it says no code.
  }
  return 'no code'
}

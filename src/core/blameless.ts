import { classify } from './classify.ts'
import { RetryLater } from './retry-later.ts'

/** Whether an error says that its message is not to blame: it is tried again, and no attempt is spent. */
export function blameless(error: unknown): boolean {
  return error instanceof RetryLater ? !error.charged : classify(error) === 'down'
}

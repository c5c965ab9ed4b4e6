import type { Message } from '../core/index.ts'
import { type Outputs, outputList } from './middleware.ts'

/** The extensions by which the request of a saga and its reply find each other. */
export const SAGA = {
  type: 'sagatype',
  id: 'sagaid',
  step: 'sagastep',
  /** Names the work: for the barrier of a participant. */
  key: 'sagakey',
  /** Only of a message that undoes: which undo it is. */
  undo: 'sagaundo',
  /** The types that count as replies, with spaces between. */
  replies: 'sagareplies',
} as const

const COPIED = [SAGA.type, SAGA.id, SAGA.step, SAGA.undo] as const

/**
 * What a handler returns says which saga it replies to, if it is of a type that this saga waits for. No others: they would
 * carry it over every further hop, and events that have nothing to do with it would count as replies.
 */
export function answering(outputs: Outputs, request: Message): Outputs {
  const types = request.extensions[SAGA.replies]
  if (typeof types !== 'string') return outputs
  const expected = types.split(' ')
  return outputList(outputs).map((output) => {
    if (!expected.includes(output.type)) return output
    const extensions = Object.fromEntries(
      COPIED.flatMap((name) => {
        const value = request.extensions[name]
        return value === undefined ? [] : [[name, value]]
      }),
    )
    return output.with({ extensions })
  })
}

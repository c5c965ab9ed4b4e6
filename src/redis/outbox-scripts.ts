import { redisScript } from '../drivers/redis/connection.ts'
import { lua } from './lua.generated.ts'

const shared = [lua['outbox-shared'], lua['outbox-enqueue'], lua['due-shared']].join('\n')

function script(name: string, text: string) {
  return redisScript(name, `${shared}\n${text}`)
}

/** Scripts of the outbox and of due-time events; what each is given and answers is said in its file. */
export const outboxScripts = {
  enqueue: script('outbox-enqueue', 'outbox_check(outbox_at(KEYS[1]))\nreturn outbox_enqueue(KEYS, ARGV)'),
  claim: script('outbox-claim', lua['outbox-claim']),
  settle: script('outbox-settle', lua['outbox-settle']),
  extend: script('outbox-extend', lua['outbox-extend']),
  open: script('outbox-open', lua['outbox-open']),
  list: script('outbox-list', lua['outbox-list']),
  show: script('outbox-show', lua['outbox-show']),
  act: script('outbox-act', lua['outbox-act']),
  audits: script('outbox-audits', lua['outbox-audits']),
  clean: script('outbox-clean', lua['outbox-clean']),
  stats: script('outbox-stats', lua['outbox-stats']),
  repair: script('outbox-repair', lua['outbox-repair']),
  dueRecord: script('due-record', 'return due_record(KEYS, ARGV)'),
  dueReschedule: script('due-reschedule', 'return due_reschedule(KEYS, ARGV)'),
  dueCancel: script('due-cancel', 'return due_cancel(KEYS, ARGV)'),
  dueRevoke: script('due-revoke', 'return due_revoke(KEYS, ARGV)'),
  dueFind: script('due-find', lua['due-find']),
  dueDecide: script('due-decide', lua['due-decide']),
  dueClean: script('due-clean', lua['due-clean']),
} as const

/** The same functions as steps of a commit; see steps.ts. */
export const outboxSteps = `${shared}\n${lua['outbox-steps']}`

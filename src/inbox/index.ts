export type { InboxAnswer, InboxKey, InboxStore } from './store.ts'

import { embedded } from './conformance-suites.ts'

embedded(
  {
    store: [
      'nobody sees an event before its transaction commits',
      'an event that commits after later ones is found',
      'two transactions at once with the same event: the second returns the first receipt',
      'two transactions at once with the same event: when the first rolls back, it is the second one’s',
    ],
    inbox: [
      'a duplicate at the same time is not new while the first may commit, and done when it has',
      'a duplicate at the same time may be handled when the first has rolled back',
      'one that waits for another and is aborted is busy, and takes nothing with it',
    ],
    sagas: [
      'a claim leaves out what another is writing, and a second writer waits for the first',
      'renewing does not wait for one that another is writing',
    ],
    work: ['nobody sees what is not committed', 'transactions at once are separate'],
  },
  'PGlite has one session, and while a transaction is open nobody else can use it',
)

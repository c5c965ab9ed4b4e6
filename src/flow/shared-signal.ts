import { setMaxListeners } from 'node:events'

/** Aborts what all handlers of a session listen to. They may be more than ten, which Node would take for a leak. */
export function sharedController(): AbortController {
  const controller = new AbortController()
  setMaxListeners(0, controller.signal)
  return controller
}

import { Reject } from '../../src/core/index.ts'

/** What a library or a user's code may throw, and what is hard to read. */
export const HOSTILE: readonly (readonly [name: string, make: () => unknown])[] = [
  ...['name', 'message', 'code', 'cause', 'errors', 'severity'].map(
    (field) => [`an Error whose ${field} throws`, () => withGetter(new Error('boom'), field)] as const,
  ),
  ['an Error whose message is no text', () => Object.assign(new Error('boom'), { message: Symbol('boom') })],
  ['an Error whose name is no text', () => Object.assign(new Error('boom'), { name: Symbol('boom') })],
  ['a Proxy that throws at everything', () => hostileProxy(new Error('boom'))],
  ['a Proxy that is revoked', revoked],
  ['an Error whose class is a Proxy', () => Object.setPrototypeOf(new Error('boom'), hostileProxy(Error.prototype))],
  ['an Error caused by a Proxy', () => new Error('boom', { cause: hostileProxy(new Error('below')) })],
  [
    'an Error caused by one whose message throws',
    () => new Error('boom', { cause: withGetter(new Error(), 'message') }),
  ],
  ['an object without a prototype', () => Object.create(null)],
  ['nothing', () => undefined],
  ['null', () => null],
  ['a symbol', () => Symbol('boom')],
  ['a function', () => () => {}],
]

/** One that was rejected, and says so however it is wrapped. */
export const HOSTILE_REJECTS: readonly (readonly [name: string, make: () => unknown])[] = [
  ['a Reject with a hostile cause', () => new Reject('no', { cause: hostileProxy(new Error('below')) })],
  ['a Reject whose message throws', () => withGetter(new Reject('no'), 'message')],
]

function withGetter(error: Error, field: string): Error {
  return Object.defineProperty(error, field, {
    get() {
      throw new Error(`${field} is not for you`)
    },
  })
}

function hostileProxy(target: object): object {
  const refuse = () => {
    throw new Error('nothing is for you')
  }
  return new Proxy(target, { get: refuse, has: refuse, getPrototypeOf: refuse, getOwnPropertyDescriptor: refuse })
}

function revoked(): object {
  const { proxy, revoke } = Proxy.revocable(new Error('boom'), {})
  revoke()
  return proxy
}

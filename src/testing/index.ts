/** `waybill/testing`: for tests of services and of backends. Imports no test runner and no driver. */
export { FakeClock } from './fake-clock.ts'
export { type SeededRandom, seededRandom } from './seeded-random.ts'

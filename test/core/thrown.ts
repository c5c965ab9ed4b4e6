import { expect } from 'vitest'
import { WaybillError } from '../../src/core/index.ts'

/** The error of ours that `act` throws. */
export function thrown(act: () => unknown): WaybillError {
  try {
    act()
  } catch (error) {
    expect(error).toBeInstanceOf(WaybillError)
    return error as WaybillError
  }
  return expect.fail('nothing was thrown')
}

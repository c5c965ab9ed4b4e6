/**
 * Free ports that two runs never both take. Below 32768, where the kernel hands out no ports of its own: a server
 * that a fault test stops must find its port still free when it starts again. For the same reason a port is reserved
 * by a file for as long as the process that asked for it lives.
 */
import { randomInt } from 'node:crypto'
import { rmSync } from 'node:fs'
import { chmod, mkdir, readFile, rm, writeFile } from 'node:fs/promises'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

const FIRST = 15_000
const LAST = 32_700
const mine = new Set<string>()

// Those of a process that was killed are given back by whoever wants the port next.
process.once('exit', () => {
  for (const file of mine) rmSync(file, { force: true })
})

export async function freePort(): Promise<number> {
  const folder = join(tmpdir(), 'waybill-ports')
  await mkdir(folder, { recursive: true })
  // Shared by all users of the machine, like the temporary folder it is in; fails when another user made it already.
  await chmod(folder, 0o1777).catch(() => {})
  for (let attempt = 0; attempt < 500; attempt++) {
    const port = randomInt(FIRST, LAST)
    const file = join(folder, String(port))
    if (!(await reserve(file))) continue
    if (await isFree(port)) {
      mine.add(file)
      return port
    }
    await rm(file, { force: true })
  }
  throw new Error(`no free port between ${FIRST} and ${LAST}`)
}

async function reserve(file: string): Promise<boolean> {
  const take = () =>
    writeFile(file, String(process.pid), { flag: 'wx' }).then(
      () => true,
      () => false,
    )
  if (await take()) return true
  const owner = Number(await readFile(file, 'utf8').catch(() => ''))
  if (!owner || lives(owner)) return false
  await rm(file, { force: true }).catch(() => {})
  return await take()
}

function lives(pid: number): boolean {
  try {
    process.kill(pid, 0)
    return true
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM'
  }
}

function isFree(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const server = createServer()
    server.once('error', () => resolve(false))
    // All addresses: a port that somebody holds on another interface is not ours either.
    server.listen(port, () => server.close(() => resolve(true)))
  })
}

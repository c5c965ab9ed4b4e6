/** `watchdog.ts <run folder>`: waits for the end of its standard input, then ends what is left of the run. */
import { rm } from 'node:fs/promises'
import { sweep } from './run.ts'

const dir = process.argv[2]!

// Whoever ends the runner's whole process group must not end the one that cleans up after it.
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, () => {})

process.stdin.resume()
process.stdin.on('end', async () => {
  await sweep(dir)
  // A server that was just being started when the runner died may have come up during the first sweep.
  await sweep(dir)
  await rm(dir, { recursive: true, force: true })
  process.exit(0)
})

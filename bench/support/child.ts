import { spawn } from 'node:child_process'
import { fileURLToPath } from 'node:url'

/** Runs a file of bench/ in a process of its own and returns the JSON on its last line. */
export async function inChild<T>(file: URL, args: readonly string[] = []): Promise<T> {
  const path = fileURLToPath(file)
  // TypeScript is for those who write it: where memory is measured the loader must not be counted.
  const loader = path.endsWith('.ts') ? ['--import', 'tsx'] : []
  const child = spawn(process.execPath, [...loader, path, ...args], { stdio: ['ignore', 'pipe', 'inherit'] })
  let output = ''
  for await (const chunk of child.stdout.setEncoding('utf8')) output += chunk
  const code = child.exitCode ?? (await new Promise<number | null>((resolve) => child.once('exit', resolve)))
  if (code !== 0) throw new Error(`${path} ended with ${code}`)
  return JSON.parse(output.trim().split('\n').at(-1)!) as T
}

/** Small file and command helpers of the provisioning code. */
import { spawn } from 'node:child_process'
import { accessSync, constants } from 'node:fs'
import { chown, lchown, mkdir, readdir, readFile } from 'node:fs/promises'
import { delimiter, join } from 'node:path'
import type { Account } from './types.ts'

export const root = process.getuid?.() === 0

/** First of the names that exists on this machine; null when we are not root and run servers as ourselves. */
export async function account(names: string[]): Promise<Account | null> {
  if (!root) return null
  const lines = (await readFile('/etc/passwd', 'utf8')).split('\n').map((line) => line.split(':'))
  for (const name of [...names, 'nobody']) {
    const fields = lines.find((line) => line[0] === name)
    if (fields) return { name, uid: Number(fields[2]), gid: Number(fields[3]) }
  }
  throw new Error(`no unprivileged user to run servers as; create one of: ${names.join(', ')}`)
}

/** A private directory that only the account may enter. */
export async function ownDir(path: string, owner: Account | null): Promise<string> {
  await mkdir(path, { recursive: true, mode: 0o700 })
  if (owner) await chown(path, owner.uid, owner.gid)
  return path
}

export async function give(path: string, owner: Account | null): Promise<void> {
  if (!owner) return
  await lchown(path, owner.uid, owner.gid)
  const entries = await readdir(path, { withFileTypes: true }).catch(() => [])
  for (const entry of entries) await give(join(path, entry.name), owner)
}

export interface CommandOptions {
  cwd?: string
  env?: Record<string, string | undefined>
  account?: Account | null
}

/** Runs a command to its end; what it printed becomes part of the error when it fails. */
export function command(file: string, args: string[], options: CommandOptions = {}): Promise<string> {
  return new Promise((resolve, reject) => {
    const child = spawn(file, args, {
      cwd: options.cwd,
      env: { ...process.env, ...options.env },
      stdio: ['ignore', 'pipe', 'pipe'],
      ...(options.account ? { uid: options.account.uid, gid: options.account.gid } : {}),
    })
    let out = ''
    let all = ''
    child.stdout.on('data', (chunk) => {
      out += chunk
      all += chunk
    })
    child.stderr.on('data', (chunk) => {
      all += chunk
    })
    child.on('error', reject)
    child.on('close', (code, signal) => {
      if (code === 0) return resolve(out)
      reject(new Error(`${file} ${args.join(' ')} ended with ${signal ?? code}\n${all.trim().slice(-2000)}`))
    })
  })
}

/** Debian keeps daemons in sbin, which is not on an ordinary user's path. */
export function onPath(name: string): string | null {
  const folders = [...(process.env['PATH'] ?? '').split(delimiter), '/usr/local/sbin', '/usr/sbin', '/sbin']
  for (const folder of folders) {
    try {
      accessSync(join(folder, name), constants.X_OK)
      return join(folder, name)
    } catch {}
  }
  return null
}

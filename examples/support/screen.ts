/** What the demo shows. Colours and a line that moves only on a terminal. */
const out = process.stdout
const lively = out.isTTY === true
const coloured = lively && process.env['NO_COLOR'] === undefined

const paint = (code: number) => (text: string) => (coloured ? `\x1b[${code}m${text}\x1b[0m` : text)
const bold = paint(1)
const dim = paint(2)
const red = paint(31)
const green = paint(32)
const yellow = paint(33)

const BAR = 24
let shownAt = 0
let quarter = 0

/** Whatever is printed goes above the moving line. */
function print(text: string): void {
  out.write(`${lively ? '\r\x1b[K' : ''}${text}\n`)
}

export function banner(text: string): void {
  print(`\n  ${bold('shop ─▶ outbox ─▶ relay ═▶ broker ═▶ billing ═▶ broker ═▶ mail room')}\n  ${dim(text)}\n`)
}

export function note(text: string): void {
  print(`  ${yellow('!')} ${text}`)
}

/** On a terminal ten times a second; elsewhere a line for each quarter. */
export function progress(counts: Record<string, number>, of: number): void {
  const { handled = 0 } = counts
  const numbers = Object.entries(counts).map(([name, count]) => `${name} ${count}`)
  if (lively) {
    if (performance.now() - shownAt < 100) return
    shownAt = performance.now()
    const full = Math.min(BAR, Math.floor((handled / of) * BAR))
    out.write(`\r\x1b[K  ${green('█'.repeat(full))}${dim('░'.repeat(BAR - full))}  ${numbers.join('   ')}`)
    return
  }
  const reached = Math.floor((handled / of) * 4)
  if (reached === quarter) return
  quarter = reached
  if (reached > 0) print(`  ${numbers.join('   ')}`)
}

const REMARKS: Record<string, string> = {
  sent: 'orders written by the shop',
  handled: 'have their invoice',
  retried: 'handler calls that failed and were repeated',
  dead: 'put aside with a reason: malformed, or refused by the handler',
  duplicates: 'arrived twice and were recognised',
  outages: 'of the broker; no order was charged an attempt for them',
  lost: 'neither handled nor put aside',
}

export function summary(totals: Record<string, number>, seconds: number): void {
  print('')
  for (const [name, count] of Object.entries(totals)) {
    const colour = name !== 'lost' ? bold : count > 0 ? red : green
    print(`  ${name.padEnd(10)} ${colour(count.toLocaleString('en').padStart(8))}   ${dim(REMARKS[name] ?? '')}`)
  }
  print(`\n  ${dim(`${seconds.toFixed(1)} s`)}\n`)
}

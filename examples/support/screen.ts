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
  print(`\n  ${bold('shop: order + outbox ─▶ relay ══ HTTP ══▶ billing: inbox + invoice')}\n  ${dim(text)}\n`)
}

export function note(text: string): void {
  print(`  ${yellow('!')} ${text}`)
}

/** On a terminal ten times a second; elsewhere a line for each quarter. */
export function progress(counts: Record<string, number>, of: number): void {
  const { invoices: handled = 0 } = counts
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
  orders: 'committed by the shop, those of rolled back transactions not among them',
  events: 'published from its outbox',
  delivered: 'requests that billing got',
  duplicates: 'of them came again, after the kill and the outage',
  invoices: 'written by billing',
  kills: 'SIGKILL of the shop and its relay',
  outages: 'of billing',
  lost: 'orders without an invoice',
  doubled: 'invoices for an order that had one',
  invented: 'invoices for an order that does not exist',
  disordered: 'invoices before an earlier one of the same customer',
}

const MUST_BE_ZERO = new Set(['lost', 'doubled', 'invented', 'disordered'])

export function summary(books: Record<string, number>, right: boolean, seconds: string): void {
  print('')
  for (const [name, count] of Object.entries(books)) {
    const colour = !MUST_BE_ZERO.has(name) ? bold : count > 0 ? red : green
    print(`  ${name.padEnd(10)} ${colour(count.toLocaleString('en').padStart(8))}   ${dim(REMARKS[name] ?? '')}`)
  }
  const verdict = right
    ? green('orders = events = invoices: every event arrived, once in effect')
    : red('the books differ')
  print(`\n  ${verdict}   ${dim(`${seconds} s`)}\n`)
}

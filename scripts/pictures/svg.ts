/** Boxes, arrows and bars as SVG. One file serves light and dark pages: the reader's own setting decides. */

const STYLE = `
  text { font: 14px system-ui, 'Segoe UI', Helvetica, Arial, sans-serif; fill: #1f2328 }
  .small { font-size: 12px; fill: #59636e }
  .bold { font-weight: 600 }
  .box { fill: #f6f8fa; stroke: #818b98; stroke-width: 1.2 }
  .end { fill: #dafbe1; stroke: #1a7f37 }
  .bad { fill: #ffebe9; stroke: #cf222e }
  .group { fill: none; stroke: #818b98; stroke-dasharray: 4 4 }
  .arrow { stroke: #59636e; stroke-width: 1.4; fill: none }
  .head { fill: #59636e }
  .bar { fill: #818b98 }
  .ours { fill: #1f6feb }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc } .small { fill: #9198a1 }
    .box { fill: #151b23; stroke: #656c76 } .end { fill: #12261e; stroke: #2ea043 } .bad { fill: #25171c; stroke: #f85149 }
    .group { stroke: #656c76 } .arrow { stroke: #9198a1 } .head { fill: #9198a1 } .bar { fill: #656c76 } .ours { fill: #4493f8 }
  }`

/** A rectangle with lines of text in its middle. */
export interface Box {
  readonly x: number
  readonly y: number
  readonly width: number
  readonly height?: number
  readonly lines: readonly string[]
  readonly kind?: 'box' | 'end' | 'bad' | 'group'
}

/** A line through these points (`x,y x,y`), with a head at its end and a label beside its middle. */
export interface Arrow {
  readonly points: string
  readonly label?: string
  readonly at?: readonly [number, number]
}

export function picture(
  title: string,
  width: number,
  height: number,
  boxes: readonly Box[],
  arrows: readonly Arrow[],
): string {
  return frame(title, width, height, [...boxes.map(box), ...arrows.map(arrow)])
}

function frame(title: string, width: number, height: number, parts: readonly string[]): string {
  const head = `<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto"><path class="head" d="M0 0L8 4L0 8z"/></marker>`
  const opening = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" width="${width}" role="img" aria-label="${escaped(title)}">`
  return `${[opening, `<title>${escaped(title)}</title>`, `<style>${STYLE}\n</style>`, `<defs>${head}</defs>`, ...parts, '</svg>'].join('\n')}\n`
}

function box({ x, y, width, height = 44, lines, kind = 'box' }: Box): string {
  const rect = `<rect class="${kind === 'group' ? 'group' : `box ${kind}`}" x="${x}" y="${y}" width="${width}" height="${height}" rx="8"/>`
  // A group has its name at the top, everything else in its middle.
  const first = kind === 'group' ? y + 20 : y + height / 2 + 5 - (lines.length - 1) * 9
  const texts = lines.map((line, index) => {
    const style = kind === 'group' || index > 0 ? 'small' : 'bold'
    return `<text class="${style}" x="${x + width / 2}" y="${first + index * 18}" text-anchor="middle">${escaped(line)}</text>`
  })
  return [rect, ...texts].join('\n')
}

function arrow({ points, label, at }: Arrow): string {
  const line = `<polyline class="arrow" marker-end="url(#head)" points="${points}"/>`
  if (label === undefined) return line
  const corners = points.split(' ').map((corner) => corner.split(',').map(Number) as [number, number])
  const [from, to] = [corners[0]!, corners.at(-1)!]
  const [x, y] = at ?? [(from[0] + to[0]) / 2, (from[1] + to[1]) / 2 - 6]
  return `${line}\n<text class="small" x="${x}" y="${y}" text-anchor="middle">${escaped(label)}</text>`
}

/** One line of a chart. */
export interface Bar {
  readonly name: string
  readonly value: number
  readonly ours: boolean
}

/** Horizontal bars, the longest as wide as there is room. `unit` stands behind each figure. */
export function bars(title: string, unit: string, rows: readonly Bar[]): string {
  const most = Math.max(...rows.map(({ value }) => value))
  const [left, room] = [230, 380]
  const parts = rows.map(({ name, value, ours }, index) => {
    const y = 44 + index * 30
    const width = Math.max(2, Math.round((value / most) * room))
    return [
      `<text x="${left - 10}" y="${y + 15}" text-anchor="end">${escaped(name)}</text>`,
      `<rect class="${ours ? 'ours' : 'bar'}" x="${left}" y="${y}" width="${width}" height="20" rx="3"/>`,
      `<text class="small" x="${left + width + 8}" y="${y + 15}">${value.toLocaleString('en')}${unit}</text>`,
    ].join('\n')
  })
  const heading = `<text class="bold" x="10" y="24">${escaped(title)}</text>`
  return frame(title, 760, 56 + rows.length * 30, [heading, ...parts])
}

function escaped(text: string): string {
  return text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('"', '&quot;')
}

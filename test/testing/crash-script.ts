/** A script to be killed. Its argument says how far it goes. */
import { InProcessBroker } from '../../src/brokers/in-process/index.ts'
import { Message } from '../../src/core/index.ts'
import { Flow } from '../../src/flow/index.ts'
import { crashingPublisher, crashingSource, crashPoint } from '../../src/testing/index.ts'

const [mode] = process.argv.slice(2)

process.on('exit', () => console.log('exit handler ran'))

if (mode === 'points') {
  for (let i = 0; i < 5; i++) {
    crashPoint('script.loop')
    console.log(`round ${i}`)
  }
  try {
    crashPoint('script.end')
    console.log('the end')
  } finally {
    console.log('finally ran')
  }
}

if (mode === 'flow') {
  const from = new InProcessBroker()
  const to = new InProcessBroker()
  const target = crashingPublisher(to, 'relay')
  from.source('relay')
  to.source('sink')
  await from.publish([new Message({ id: '1', source: '/s', type: 't' }, '{}')])
  const flow = new Flow({
    name: 'relay',
    from: crashingSource(from.source('relay'), 'relay'),
    step: {
      batch: (deliveries, signal) =>
        target.publish(
          deliveries.map(({ message }) => message),
          signal,
        ),
      size: 10,
      ordered: false,
    },
  })
  const { done } = await flow.runOnce()
  console.log(`done ${done}, arrived ${to.stats('sink').ready}`)
  await flow.stop()
}

if (mode === 'wait') {
  console.log('waiting')
  let ticks = 0
  setInterval(() => console.log(`tick ${ticks++}`), 20)
}

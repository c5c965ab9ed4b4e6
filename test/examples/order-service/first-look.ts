// The list of a buyer, on the database that is given, before anything else of the service has run.
process.env['DATABASE_URL'] = process.argv[2]
const { listOrders } = await import('../../../examples/order-service/view.ts')
const { pools } = await import('../../../examples/order-service/db.ts')

console.log(JSON.stringify(await listOrders('ann', { size: 20 })))
await pools.orders.end()

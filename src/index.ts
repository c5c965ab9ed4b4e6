export * from './core/index.ts'
export * from './flow/index.ts'
export * from './outbox/index.ts'
export * from './router/index.ts'

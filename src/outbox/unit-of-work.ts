/**
 * A transaction around a piece of work. `Tx` is the driver's own transaction type, so that the caller's code and the
 * outbox write through the same one.
 */
export interface UnitOfWork<Tx = unknown> {
  /**
   * Begins, runs `fn`, commits; rolls back when `fn` throws and throws that. Called within itself it joins the outer
   * transaction, and an inner failure dooms the whole even when the caller catches it. Neither commit nor rollback is
   * cut short by a signal.
   */
  withTransaction<T>(fn: (tx: Tx) => Promise<T>): Promise<T>
  /** The transaction of the `withTransaction` we are in, if any. */
  current(): Tx | undefined
  /** Runs after the commit of the current transaction, and never when it is rolled back. */
  afterCommit(fn: () => void): void
}

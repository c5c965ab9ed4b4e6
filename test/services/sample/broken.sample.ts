throw new Error('a file that cannot be loaded')

export {}

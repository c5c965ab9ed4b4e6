import { mkdirSync, readdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { manifest, packedTarball } from './packed.ts'
import { type Findings, failure, npm, root, run, runBin, temporaryFolder } from './run.ts'

/**
 * Installs the packed tarball into an empty folder, as a user without any optional driver would, and there imports
 * every subpath: at run time in a child process, and in a TypeScript file with the declarations checked too.
 */
export async function smoke(): Promise<Findings> {
  const tarball = await packedTarball()
  const folder = temporaryFolder('smoke')
  writeFileSync(join(folder, 'package.json'), JSON.stringify({ name: 'smoke', private: true, type: 'module' }))

  // Offline: the package stands alone, so installing it asks no registry.
  const installed = await npm(['install', '--offline', tarball], { cwd: folder })
  if (installed.code !== 0) return failure('npm install of the tarball into an empty folder', installed)
  const { name, exports } = manifest()
  const others = readdirSync(join(folder, 'node_modules')).filter((entry) => entry !== name && !entry.startsWith('.'))
  if (others.length > 0) return { problems: [`installing ${name} also installed ${others.join(', ')}`] }

  const subpaths = Object.keys(exports).map((subpath) => name + subpath.slice(1))
  const modules = subpaths.filter((subpath) => !subpath.endsWith('.json'))
  const [imported, typed] = await Promise.all([importAll(folder, subpaths), typeCheckAll(folder, modules)])
  return { problems: [...imported.problems, ...typed.problems] }
}

async function importAll(folder: string, subpaths: string[]): Promise<Findings> {
  const script = `
    import { createRequire } from 'node:module'
    const require = createRequire(import.meta.url)
    for (const subpath of ${JSON.stringify(subpaths)}) {
      try {
        // Importing JSON needs a flag or an attribute, depending on Node's version; require never did.
        const module = subpath.endsWith('.json') ? require(subpath) : await import(subpath)
        if (Object.keys(module).length === 0) throw new Error('exports nothing')
      } catch (error) {
        console.error(subpath + ': ' + String(error?.stack ?? error).split('\\n').slice(0, 4).join('\\n'))
        process.exitCode = 1
      }
    }
  `
  writeFileSync(join(folder, 'import.mjs'), script)
  // The timeout is part of the test: an import that keeps the process alive has done I/O before start.
  const finished = await run(process.execPath, ['import.mjs'], {
    cwd: folder,
    env: { NODE_PATH: '', NODE_OPTIONS: '' },
    timeout: 30_000,
  })
  return failure('importing every subpath without drivers', finished)
}

async function typeCheckAll(folder: string, subpaths: string[]): Promise<Findings> {
  const project = join(folder, 'types')
  mkdirSync(project)
  const lines = subpaths.map((subpath, index) => `export * as m${index} from '${subpath}'`)
  writeFileSync(join(project, 'all.ts'), `${lines.join('\n')}\n`)
  writeFileSync(
    join(project, 'tsconfig.json'),
    JSON.stringify({
      compilerOptions: {
        target: 'ES2022',
        lib: ['ES2023'],
        module: 'NodeNext',
        moduleResolution: 'NodeNext',
        strict: true,
        exactOptionalPropertyTypes: true,
        noEmit: true,
        // Our declarations must be right in themselves: nothing is skipped. Only Node's types are lent to the folder.
        skipLibCheck: false,
        typeRoots: [join(root, 'node_modules/@types')],
        types: ['node'],
      },
      files: ['all.ts'],
    }),
  )
  const finished = await runBin('typescript/bin/tsc', ['-p', project], { cwd: folder })
  return failure('type-checking a file that imports every subpath', finished)
}

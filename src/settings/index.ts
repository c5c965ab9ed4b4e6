export {
  type CleanerSettings,
  type RelaySettings,
  type Settings,
  type SettingsOptions,
  settingsFrom,
} from './settings.ts'
export { SETTINGS, type Setting } from './table.ts'

// Before anything is painted: the theme that was chosen the last time, if any.
"use strict";
try {
  const kept = localStorage.getItem("bayescope-theme");
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
} catch {
  // A browser that keeps nothing starts with the system's theme.
}

"use strict";
// Shows the figures under the pointer at once. Without this script, the browser shows them as tooltips after a delay.
(function () {
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  document.body.appendChild(tip);
  document.querySelectorAll(".hits rect").forEach(function (hit) {
    const title = hit.querySelector("title");
    hit.dataset.tip = title.textContent;
    title.remove();
  });
  document.addEventListener("pointermove", function (event) {
    const hit = event.target.closest ? event.target.closest(".hits rect") : null;
    tip.hidden = hit === null;
    if (hit === null) {
      return;
    }
    tip.textContent = hit.dataset.tip;
    const room = document.documentElement;
    const left = Math.min(event.clientX + 14, room.clientWidth - tip.offsetWidth - 6);
    const above = event.clientY - tip.offsetHeight - 12;
    tip.style.left = Math.max(4, left) + "px";
    tip.style.top = Math.max(above, 4) + "px";
  });
  document.addEventListener("scroll", function () { tip.hidden = true; });
})();

async function openLive() { byId("view-live").append(element("p", {}, "not served")); }
const live = {};

// A file of its own, so that the page needs no inline script.
SwaggerUIBundle({
  url: "/openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: true,
  layout: "BaseLayout",
  presets: [SwaggerUIBundle.presets.apis, SwaggerUIBundle.SwaggerUIStandalonePreset].filter(Boolean),
  // The badge of Swagger's online validator is loaded from elsewhere.
  validatorUrl: null,
});

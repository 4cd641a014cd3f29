"""Which model a run uses, and what to say where there is none."""

from __future__ import annotations

from msgspec import Struct

from laneway.cli._exit import CliError
from laneway.cli.config import configured_model
from laneway.errors import LanewayError
from laneway.llm import Model, Models, default_models, local_setup

TINY = "it is tiny and only there to show and test the machine; give --model for real work"
NO_MODEL = """no model to work with. Three ways to get one:
  1. a provider's key:     export OPENAI_API_KEY=…   (or ANTHROPIC_API_KEY, GEMINI_API_KEY, …: see `laneway models`)
  2. a server of your own: laneway run --model ollama/NAME …   (also lmstudio, vllm, llama.cpp)
  3. the embedded model:   laneway local setup   (tiny, needs no key and no server)"""


class Choice(Struct, kw_only=True, frozen=True):
    """A model, where the choice came from, and what the person should know about it."""

    model: Model
    source: str
    note: str | None = None


def choose_model(spec: str | None, *, kept: str | None = None) -> Choice:
    """Return the model of `--model`, else what a session has `kept`, else of the settings, of the first provider with a key, or the embedded one.

    Raises:
        CliError: no such model, or none at all; the text says what to do.
        ModelError: stored keys, or the person's own models, cannot be read.
    """
    models = default_models()
    source = "--model"
    if spec is None and kept is not None:
        spec, source = kept, "the session's model"
    if spec is None and (configured := configured_model()) is not None:
        spec, source = configured
    if spec is not None:
        try:
            return Choice(model=models.model(spec), source=source)
        except LanewayError as error:
            other = "; --model chooses another" if spec == kept else ""
            raise CliError(f"{source}: {error}{other}") from error
    models.credentials.list()  # a file of keys that cannot be read must not pass for no keys
    return _with_a_key(models) or _embedded(models) or _nothing()


def _with_a_key(models: Models) -> Choice | None:
    for provider in models.providers():
        if provider.key_names and not provider.key_optional and provider.default_model and models.is_configured(provider):
            model = models.get(provider.id, provider.default_model)
            if model is not None:
                source = f"the key of {provider.id}"
                return Choice(model=model, source=source, note=f"using {model.spec}, because {source} is set; --model chooses another")
    return None


def _embedded(models: Models) -> Choice | None:
    if not local_setup().ready:
        return None
    model = models.model("local/smollm2" if local_setup().named is None else "local/default")
    return Choice(model=model, source="the embedded model", note=f"no key is set, so the embedded model {model.spec} is used: {TINY}")


def _nothing() -> Choice:
    raise CliError(NO_MODEL)

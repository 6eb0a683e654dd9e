"""bundle to tokens: the runtime.

Reading order: `errors.py`, `options.py` (STRATA_* variables), `command.py` (what commands share);
the files that come in: `gguf_header.py` and `gguf_file.py` (the model), `model_source.py` (where it
lies), `records.py`, `bundle_format.py` and `bundle_load.py` (the bundle); what runs: `launch.py` (a
launch and its table), `request.py` (a request and its end), `drafters.py` (what may come next),
`schedule.py` (a schedule as data), `evolve.py`, `measures.py` (times and acceptance), `state.py`,
`choice.py` (how many windows and drafts), `commits.py`, `windows.py` and `scheduler.py` (events in,
launches out), `device.py` (what a device must do), `arenas.py` (its memory), `cpu_device.py` (the
CPU's), `cuda_driver.py`, `cuda_graphs.py`, `cuda_stage.py` and `cuda_device.py` (a card's),
`devices.py` (which one), `times.py` and `clock.py` (one that is simulated), `trace.py` (what ran
when), `engine.py` (drives scheduler and device); text: `vocabulary.py`, `pretokenizers.py`,
`tokenizer.py`, `chat.py`, `text_stream.py`; then `cli.py` (strata-run); last `bench_figures.py`,
`bench_prompts.py`, `bench.py`, `bench_report.py`, `cuda_profile.py`, `cuda_report.py` and
`bench_cli.py` (strata-bench).
"""

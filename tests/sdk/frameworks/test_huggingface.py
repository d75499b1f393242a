import logging
import random

import numpy as np
import pytest
import torch
from torch.nn import functional

import shadeproxy_sdk as shade
from tests.support.labelled import COUNT, pack, unpack

# transformers and torch warn about each other, with other warnings in each version.
pytestmark = pytest.mark.filterwarnings("ignore")


class Model(torch.nn.Module):
    """A model in the form of transformers: it receives features, and returns loss and logits. It accepts no
    ids.
    """

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(4, 3)

    def forward(self, x, labels):
        logits = self.layer(x)
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


def features(data):
    x, label = unpack(data)
    return {"x": x, "labels": label}


@pytest.fixture
def make_trainer(client, samples, tmp_path, huggingface):
    def make(sampler, *, epochs=2, model=None, kind=None, evaluate=False, own=None, **options):
        if kind is None:
            kind, own = huggingface.RecordingTrainer, {"shade_sampler": sampler} | (own or {})
        arguments = huggingface.TrainingArguments(
            num_train_epochs=epochs,
            per_device_train_batch_size=4,
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
            eval_strategy="epoch" if evaluate else "no",
            lr_scheduler_type="constant",
            **({"output_dir": str(tmp_path), "save_strategy": "no", "learning_rate": 0.01} | options),
        )
        data = shade.S3Dataset(client, manifest=samples, decode=features)
        return kind(
            model or Model(), arguments, train_dataset=data, eval_dataset=data if evaluate else None, **own
        )

    return make


@pytest.mark.parametrize("mode", ["uniform", "importance"])
def test_epochs_are_the_samplers_and_every_loss_arrives(make_trainer, make_sampler, proxy, mode):
    sampler = make_sampler(mode)
    trainer = make_trainer(sampler)
    trainer.train()
    read = [sample for batch in trainer.ids for sample in batch]
    assert read[:COUNT] == make_sampler(name="other").order(0).tolist()
    assert read[COUNT:] == sampler.order(1).tolist()
    assert sampler.job.stats().reported == 2 * COUNT / 4
    assert sorted(proxy.scores["run"]) == list(range(COUNT))
    assert sampler.job.epoch == 1


def test_what_is_reported_are_the_losses_of_the_samples(make_trainer, make_sampler, monkeypatch):
    sampler, reported = make_sampler(), {}
    monkeypatch.setattr(
        sampler.job,
        "report",
        lambda ids, losses: reported.update(zip(ids.tolist(), losses.tolist(), strict=True)),
    )
    make_trainer(sampler, epochs=1, learning_rate=0.0).train()
    model = Model()
    for sample in range(COUNT):
        x, label = unpack(pack(sample))
        expected = functional.cross_entropy(model.layer(x[None]), torch.tensor([label]))
        assert reported[sample] == pytest.approx(float(expected.detach()), rel=1e-5)


def test_the_loss_that_is_trained_on_is_corrected(make_trainer, make_sampler, monkeypatch):
    """The loss that is trained on is multiplied by the weights of the samples. This also holds if gradients
    are accumulated over several steps. Twice the weight must move the model twice as far.
    """
    sampler, layers = make_sampler("importance"), []
    for weight in (0.0, 1.0, 2.0):
        monkeypatch.setattr(sampler, "weight_of", lambda ids, weight=weight: torch.full(ids.shape, weight))
        model = Model()
        trainer = make_trainer(
            sampler, epochs=1, model=model, optim="sgd", gradient_accumulation_steps=6, max_grad_norm=0.0
        )
        before = model.layer.weight.detach().clone()
        trainer.train()
        layers.append(model.layer.weight.detach() - before)
    assert torch.count_nonzero(layers[0]) == 0
    assert torch.allclose(layers[2], 2 * layers[1], rtol=1e-4)
    plain = Model()
    before = plain.layer.weight.detach().clone()
    make_trainer(
        make_sampler(name="plain"),
        epochs=1,
        model=plain,
        optim="sgd",
        gradient_accumulation_steps=6,
        max_grad_norm=0.0,
    ).train()
    assert torch.allclose(layers[1], plain.layer.weight.detach() - before, rtol=1e-4)


def test_evaluations_reach_the_sampler_and_are_not_reported(make_trainer, make_sampler, monkeypatch):
    sampler, told = make_sampler(), []
    monkeypatch.setattr(sampler, "validated", lambda **metric: told.append(metric), raising=False)
    trainer = make_trainer(sampler, evaluate=True, own={"shade_monitor": "eval_loss"})
    trainer.train()
    assert [list(metric) for metric in told] == [["loss"], ["loss"]]
    assert told[0]["loss"] > told[1]["loss"] > 0
    assert sampler.job.stats().reported == 2 * COUNT / 4
    predictions = trainer.predict(trainer.eval_dataset).predictions
    assert predictions.shape == (COUNT, 3)


def test_the_loader_follows_the_arguments(make_trainer, make_sampler):
    wanted = {
        "num_workers": 2,
        "prefetch_factor": 3,
        "multiprocessing_context": "spawn",
        "in_order": False,
        "persistent_workers": True,
        "drop_last": True,
    }
    trainer = make_trainer(
        make_sampler(drop_last=True), **{f"dataloader_{name}": value for name, value in wanted.items()}
    )
    loader = trainer.get_train_dataloader()
    context = wanted.pop("multiprocessing_context")
    assert {name: getattr(loader, name) for name in wanted} == wanted
    assert loader.multiprocessing_context.get_start_method() == context


def test_a_sampling_strategy_that_is_not_used_is_told(make_trainer, make_sampler, caplog):
    make_trainer(make_sampler())
    assert not caplog.records
    try:
        make_trainer(make_sampler(), train_sampling_strategy="group_by_length")
    except TypeError:  # An older version of transformers.
        make_trainer(make_sampler(), group_by_length=True)
    assert "Trainer's sampling strategy is not used" in caplog.text


def test_workers_of_other_ranks_draw_other_random_numbers(make_trainer, make_sampler, monkeypatch):
    """Trainer sets the same seed in all ranks, so their workers would augment samples in the same way."""

    def numbers(rank):
        trainer = make_trainer(make_sampler(name=f"run{rank}"), dataloader_num_workers=2)
        monkeypatch.setattr(type(trainer.args), "process_index", rank)
        found = []
        for worker in range(2):
            torch.manual_seed(7 + worker)  # As torch seeds its workers.
            trainer.get_train_dataloader().worker_init_fn(worker)
            found.append((random.random(), float(np.random.rand()), float(torch.rand(()))))  # noqa: NPY002
        return found

    state = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    try:
        drawn = [numbers(rank) for rank in range(3)]
        assert drawn[0] == numbers(0)
    finally:
        random.setstate(state[0])
        np.random.set_state(state[1])  # noqa: NPY002
        torch.set_rng_state(state[2])
    assert len({number for ranks in drawn for one in ranks for number in one}) == 3 * 2 * 3


@pytest.mark.parametrize("alone", [False, True])
def test_a_job_that_was_made_for_other_processes_is_told(
    make_trainer, make_sampler, monkeypatch, caplog, huggingface, *, alone
):
    sampler = make_sampler()
    options = {"kind": huggingface.Trainer, "own": {}} if alone else {}
    trainer = make_trainer(sampler, **options)
    callback = huggingface.ShadeTrainerCallback(sampler) if alone else trainer._callback
    monkeypatch.setattr(type(trainer.args), "world_size", 2)
    callback.on_train_begin(trainer.args, trainer.state, trainer.control)
    assert "2 processes train, but the job was made for 1" in caplog.text


def test_the_callback_alone_begins_epochs(make_trainer, make_sampler, huggingface):
    sampler, orders = make_sampler(), []
    callback = huggingface.ShadeTrainerCallback(sampler)

    class Plain(huggingface.Trainer):
        def get_train_dataloader(self):
            def collate(samples):
                found, ids = zip(*samples, strict=True)
                orders.extend(ids)
                return huggingface.default_data_collator(list(found))

            return torch.utils.data.DataLoader(self.train_dataset, 4, sampler=sampler, collate_fn=collate)

    make_trainer(sampler, kind=Plain, own={"callbacks": [callback]}).train()
    callback.report([1, 2], [0.5, 0.25])
    assert orders == [*sampler.order(0).tolist(), *sampler.order(1).tolist()]
    assert sampler.job.epoch == 1
    assert sampler.job.stats().reported == 1


def test_a_sampler_of_torch_that_is_announced_has_neither_epoch_nor_state(
    make_trainer, make_job, samples, proxy, caplog
):
    drawn = torch.utils.data.RandomSampler(range(COUNT), generator=torch.Generator())
    sampler = shade.announce(drawn, make_job(dataset=samples))
    trainer = make_trainer(sampler, save_strategy="steps", save_steps=4)
    trainer.train()
    trainer.train(resume_from_checkpoint=True)
    assert sampler.job.epoch == 1
    assert sorted(proxy.scores["run"]) == list(range(COUNT))
    assert not [record for record in caplog.records if record.name == "shadeproxy_sdk"]


def test_a_sampler_that_lacks_all_that_is_asked_for_is_told_once(tmp_path, caplog, huggingface):
    callback = huggingface.ShadeTrainerCallback(object(), monitor="loss")

    class Of:
        output_dir, ignore_data_skip, global_step, epoch = tmp_path, False, 3, 0.0

    callback.on_train_begin(Of, Of, None)
    callback.on_epoch_begin(Of, Of, None)
    callback.report([1], [0.5])
    callback.on_evaluate(Of, Of, None, {"loss": 0.5})
    callback.on_save(Of, Of, None)
    callback.on_train_end(Of, Of, None)
    assert len(caplog.records) == 1
    assert "AttributeError: 'object' object has no attribute 'job' (said once)" in caplog.text


@pytest.mark.parametrize("mode", ["uniform", "importance"])
@pytest.mark.parametrize("step", [6, 7, 10])
def test_a_resumed_run_reads_what_the_first_one_did(make_trainer, make_sampler, tmp_path, mode, step):
    """A resumed run reads the same samples as the first run did. It resumes from a checkpoint at the end of
    an epoch of 6 steps, or before or after the middle of the next epoch.
    """
    settings = {"save_strategy": "steps", "save_steps": step, "epochs": 3, "learning_rate": 3.0}
    first = make_trainer(make_sampler(mode), **settings)
    first.train()
    again = make_sampler(mode, name="again")
    resumed = make_trainer(again, **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{step}"))
    assert resumed.ids == first.ids[step:]
    assert again.job.position == COUNT


def test_a_run_resumes_from_the_checkpoint_that_it_is_given(
    make_trainer, make_sampler, tmp_path, huggingface
):
    """The checkpoint that is given to ``train`` lies in the directory of an earlier run. The directory of the
    new run has a checkpoint of the same step, of a run with other losses.
    """
    settings = {"save_strategy": "steps", "save_steps": 10, "epochs": 3, "learning_rate": 3.0}

    def falling(outputs, labels):
        return -huggingface.class_losses(outputs, labels)

    runs = {}
    for name, losses in (("old", huggingface.class_losses), ("new", falling)):
        runs[name] = make_trainer(
            make_sampler("importance", name=name),
            output_dir=str(tmp_path / name),
            own={"shade_losses": losses},
            **settings,
        )
        runs[name].train()
    again = make_sampler("importance", name="again")
    resumed = make_trainer(again, output_dir=str(tmp_path / "new"), **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "old" / "checkpoint-10"))
    assert resumed.ids == runs["old"].ids[10:] != runs["new"].ids[10:]


def test_the_callback_alone_loads_the_state_from_the_directory_that_it_is_given(
    make_sampler, tmp_path, caplog, huggingface
):
    class Old:
        output_dir, ignore_data_skip, global_step = tmp_path / "old", False, 8

    class New(Old):
        output_dir = tmp_path / "new"

    checkpoint = tmp_path / "old" / "checkpoint-8"
    checkpoint.mkdir(parents=True)
    saved, lost, found = (make_sampler(name=name) for name in ("saved", "lost", "found"))
    saved.set_epoch(1)
    huggingface.ShadeTrainerCallback(saved).on_save(Old, Old, None)
    huggingface.ShadeTrainerCallback(lost).on_train_begin(New, New, None)
    (record,) = caplog.records
    assert "checkpoint-8/shade_sampler_0.pt, so the sampler goes on without its saved" in record.message
    assert "ShadeTrainerCallback(..., checkpoint=DIRECTORY)" in record.message
    huggingface.ShadeTrainerCallback(found, checkpoint=checkpoint).on_train_begin(New, New, None)
    assert (lost.epoch, found.epoch, len(caplog.records)) == (0, 1, 1)


@pytest.mark.parametrize(("step", "epoch"), [(8, 1), (4, 0)])
def test_the_callback_alone_finds_the_checkpoint_that_the_arguments_name(
    make_sampler, tmp_path, step, epoch, huggingface
):
    """Scripts of Hugging Face put the checkpoint into the arguments. A checkpoint of another step is not the
    one from which the run resumes.
    """

    class Old:
        output_dir, ignore_data_skip, global_step = tmp_path / "old", False, 8

    class New(Old):
        output_dir = tmp_path / "new"
        resume_from_checkpoint = str(tmp_path / "old" / "checkpoint-8")

    checkpoint = tmp_path / "old" / "checkpoint-8"
    checkpoint.mkdir(parents=True)
    (checkpoint / "trainer_state.json").write_text(f'{{"global_step": {step}}}')
    saved, resumed = (make_sampler(name=name) for name in ("saved", "resumed"))
    saved.set_epoch(1)
    huggingface.ShadeTrainerCallback(saved).on_save(Old, Old, None)
    huggingface.ShadeTrainerCallback(resumed).on_train_begin(New, New, None)
    assert resumed.epoch == epoch


def test_a_resumed_run_knows_its_position(make_trainer, make_sampler, tmp_path, huggingface):
    make_trainer(make_sampler(), save_strategy="steps", save_steps=8).train()
    again, positions = make_sampler(name="again"), []

    class Watch(huggingface.TrainerCallback):
        def on_step_end(self, *_, **__):
            positions.append(again.job.position)

    resumed = make_trainer(again, own={"callbacks": [Watch()]})
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-8"))
    assert positions == [12, 16, 20, 24]


def test_a_resumed_run_that_skips_nothing_begins_its_epoch_again(make_trainer, make_sampler, tmp_path):
    make_trainer(make_sampler(), save_strategy="steps", save_steps=8).train()
    again = make_sampler(name="again")
    resumed = make_trainer(again, ignore_data_skip=True)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-8"))
    read = [sample for batch in resumed.ids for sample in batch]
    assert read == again.order(1).tolist()[: len(read)]
    assert again.job.position == len(read)


@pytest.mark.parametrize("mode", ["uniform", "importance"])
def test_training_goes_on_whatever_fails(make_trainer, make_sampler, monkeypatch, caplog, mode):
    sampler = make_sampler(mode)

    def fail(*_, **__):
        raise RuntimeError("broken")

    for name in ("set_epoch", "validated", "state_dict", "weight_of"):
        monkeypatch.setattr(sampler, name, fail, raising=False)
    monkeypatch.setattr(sampler.job, "flush", fail)
    own = {"shade_monitor": "eval_loss", "shade_losses": fail}
    trainer = make_trainer(sampler, evaluate=True, own=own, save_strategy="epoch")
    with caplog.at_level(logging.WARNING, "shadeproxy_sdk"):
        trainer.train()
    assert trainer.state.global_step == 2 * COUNT / 4
    said = [record.message for record in caplog.records if record.name == "shadeproxy_sdk"]
    assert (
        said == ["The callback of job run: RuntimeError: broken (said once)"] * 2
    )  # one warning from the mixin, and one from the callback


def test_losses_of_next_tokens_leave_out_what_is_ignored(huggingface):
    logits = torch.randn(2, 5, 7)
    labels = torch.tensor([[1, 2, 3, -100, -100], [4, -100, 5, 6, 0]])
    found = huggingface.causal_lm_losses({"logits": logits}, labels)
    for row in range(2):
        coming = [(t, int(labels[row, t + 1])) for t in range(4) if labels[row, t + 1] != -100]
        expected = np.mean([-torch.log_softmax(logits[row, t], 0)[word].item() for t, word in coming])
        assert found[row].item() == pytest.approx(float(expected), rel=1e-5)

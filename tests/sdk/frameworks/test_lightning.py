import logging

import pytest
import torch

import shadeproxy_sdk as shade
from tests.support.labelled import COUNT, unpack

# Lightning and torch warn about each other and about small loaders, with other warnings in each version.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def fit(client, samples, tmp_path, lightning):
    def run(sampler, callback, epochs=2, *, module=None, resume=None, validate=False, **options):
        data = shade.S3Dataset(client, manifest=samples, decode=unpack)
        loader = torch.utils.data.DataLoader(
            data,
            batch_size=options.pop("batch_size", 4),
            sampler=sampler,
            collate_fn=shade.collate,
            num_workers=options.pop("num_workers", 0),
            drop_last=getattr(sampler, "drop_last", False),
        )
        trainer = lightning.Trainer(
            max_epochs=epochs,
            accelerator="cpu",
            devices=1,
            callbacks=[callback, *options.pop("callbacks", ())],
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=options.pop("enable_checkpointing", False),
            default_root_dir=tmp_path,
            num_sanity_val_steps=1,
            **options,
        )
        module = module or lightning.Module(sampler)
        trainer.fit(module, loader, loader if validate else None, ckpt_path=resume)
        return module, trainer

    return run


@pytest.mark.parametrize("mode", ["uniform", "importance"])
def test_epochs_are_the_samplers_and_every_loss_arrives(fit, make_sampler, proxy, mode, lightning):
    sampler = make_sampler(mode)
    module, _ = fit(sampler, lightning.ShadeCallback(sampler))
    first, second = module.epochs().values()
    assert first == sampler_order(make_sampler, 0)
    assert second == sampler.order(1).tolist()
    assert first != second
    assert sampler.job.stats().reported == 2 * COUNT / 4
    assert sorted(proxy.scores["run"]) == list(range(COUNT))
    assert sampler.job.epoch == 1


def sampler_order(make_sampler, epoch):
    return make_sampler(name="other").order(epoch).tolist()


def test_a_module_may_report_by_hand(fit, make_sampler, proxy, lightning):
    sampler = make_sampler()
    callback = lightning.ShadeCallback(sampler)
    fit(sampler, callback, 1, module=lightning.Module(sampler, by_hand=callback))
    assert sorted(proxy.scores["run"]) == list(range(COUNT))


def test_the_metric_of_validation_reaches_the_sampler(fit, make_sampler, monkeypatch, lightning):
    sampler, told = make_sampler(), []
    monkeypatch.setattr(sampler, "validated", lambda **metric: told.append(metric), raising=False)
    fit(sampler, lightning.ShadeCallback(sampler, monitor="accuracy"), validate=True)
    assert told == [{"accuracy": 0.25}, {"accuracy": 0.5}]
    told.clear()
    fit(sampler, lightning.ShadeCallback(sampler, monitor="accuracy", better="min"), 1, validate=True)
    assert told == [{"loss": 0.25}]


def test_a_metric_that_nobody_logs_is_said_once(fit, make_sampler, monkeypatch, caplog, lightning):
    sampler = make_sampler()
    monkeypatch.setattr(sampler, "validated", lambda **_: None, raising=False)
    with caplog.at_level(logging.WARNING, "shadeproxy_sdk"):
        fit(sampler, lightning.ShadeCallback(sampler, monitor="recall"), validate=True)
    said = [record.message for record in caplog.records if record.name == "shadeproxy_sdk"]
    assert said == ["The callback of job run: validation gave no 'recall', but accuracy (said once)"]


def test_training_goes_on_whatever_fails(fit, make_sampler, proxy, monkeypatch, caplog, *, lightning):
    sampler = make_sampler()

    def fail(*_, **__):
        raise RuntimeError("broken")

    for name in ("set_epoch", "validated", "state_dict"):
        monkeypatch.setattr(sampler, name, fail, raising=False)
    monkeypatch.setattr(sampler, "set_epoch", None)  # Lightning would call set_epoch itself.
    monkeypatch.setattr(sampler.job, "flush", fail)
    proxy.refuse["scores"] = 500
    callback = lightning.ShadeCallback(sampler, monitor="accuracy")
    module, _ = fit(sampler, callback, validate=True, module=lightning.Module(sampler, fails=True))
    assert len(module.read) == 2 * COUNT / 4
    assert callback.state_dict() == {}
    assert [r.message for r in caplog.records if "The callback of job run" in r.message]


def test_a_sampler_that_does_not_deal_to_all_processes_is_told(make_sampler, caplog, lightning):
    sampler = make_sampler()
    callback = lightning.ShadeCallback(sampler)

    class Several:
        current_epoch, world_size = 3, 4

    callback.on_train_epoch_start(Several, None)
    assert sampler.epoch == 3
    assert "4 processes train, but the job was made for 1: pass rank and world_size" in caplog.text


def test_batches_that_lightning_deals_a_second_time_are_told(make_job, samples, caplog, lightning):
    job = make_job(dataset=samples, rank=0, world_size=4)
    sampler = shade.ShadeSampler(job, batch_size=4)

    class Several:
        current_epoch, world_size = 0, 4
        train_dataloader = torch.utils.data.DataLoader(range(9), 4, sampler=sampler)

    callback = lightning.ShadeCallback(sampler)
    callback.on_train_epoch_start(Several, None)
    assert not caplog.records
    dealt = torch.utils.data.DistributedSampler(range(9), 4, 0)
    Several.train_dataloader = torch.utils.data.DataLoader(range(9), 4, sampler=dealt)
    callback.on_train_epoch_start(Several, None)
    assert "dealt to the ranks a second time" in caplog.text


def test_a_sampler_of_torch_that_is_announced_has_neither_epoch_nor_state(
    fit, make_job, samples, tmp_path, caplog, *, lightning
):
    drawn = torch.utils.data.RandomSampler(range(COUNT), generator=torch.Generator())
    sampler = shade.announce(drawn, make_job(dataset=samples))
    sampler.weight_of = torch.ones_like
    keep = lightning.ModelCheckpoint(tmp_path, save_top_k=-1)
    module, _ = fit(sampler, lightning.ShadeCallback(sampler), callbacks=[keep], enable_checkpointing=True)
    assert [sorted(ids) for ids in module.epochs().values()] == [list(range(COUNT))] * 2
    assert sampler.job.epoch == 1
    assert sampler.job.stats().reported == 2 * COUNT / 4
    assert not [record for record in caplog.records if record.name == "shadeproxy_sdk"]


def test_a_sampler_that_lacks_all_that_is_asked_for_is_told_once(caplog, lightning):
    callback = lightning.ShadeCallback(object(), monitor="accuracy")

    class Trainer:
        current_epoch, world_size, sanity_checking, callback_metrics = 0, 1, False, {"accuracy": 0.5}

    callback.on_train_epoch_start(Trainer, None)
    callback.on_train_batch_end(Trainer, None, {"ids": [1], "losses": [0.5]}, None, 0)
    callback.on_validation_end(Trainer, None)
    callback.load_state_dict({"position": 1})
    assert callback.state_dict() == {}
    callback.on_train_end(Trainer, None)
    assert len(caplog.records) == 1
    assert "AttributeError: 'object' object has no attribute 'set_epoch' (said once)" in caplog.text


@pytest.mark.parametrize("mode", ["uniform", "importance"])
@pytest.mark.parametrize("step", [6, 7, 10])
def test_a_resumed_run_reads_what_the_first_one_did(fit, make_sampler, tmp_path, mode, step, *, lightning):
    """A resumed run reads the same samples as the first run did. It resumes from a checkpoint at the end of
    an epoch of 6 steps, or before or after the middle of the next epoch.
    """
    sampler = make_sampler(mode)
    keep = lightning.ModelCheckpoint(tmp_path, every_n_train_steps=step, save_top_k=-1)
    first, _ = fit(sampler, lightning.ShadeCallback(sampler), 3, callbacks=[keep], enable_checkpointing=True)
    again = make_sampler(mode, name="again")
    (path,) = tmp_path.glob(f"*step={step}.ckpt")
    resumed, _ = fit(again, lightning.ShadeCallback(again), 3, resume=path)
    assert resumed.read == first.read[step:]


@pytest.mark.parametrize(
    ("drop_last", "options"),
    [(True, {"batch_size": 5}), (False, {"limit_train_batches": 4})],
)
def test_a_run_resumes_at_the_end_of_an_epoch_whose_last_samples_are_left_out(
    fit, make_sampler, tmp_path, drop_last, options, *, lightning
):
    options = options | {"num_workers": 1}
    sampler = make_sampler(drop_last=drop_last)
    keep = lightning.ModelCheckpoint(tmp_path, save_top_k=-1)
    first, _ = fit(
        sampler,
        lightning.ShadeCallback(sampler),
        3,
        callbacks=[keep],
        enable_checkpointing=True,
        **options,
    )
    again = make_sampler(name="again", drop_last=drop_last)
    (path,) = tmp_path.glob("*step=4.ckpt")
    resumed, _ = fit(again, lightning.ShadeCallback(again), 3, resume=path, **options)
    assert resumed.read == first.read[4:]
    assert len(resumed.read) == 8


@pytest.mark.parametrize("mode", ["shade", "reorder", "importance", "uniform"])
def test_all_ranks_resume_at_the_place_of_rank_0_whose_state_lightning_keeps(
    make_job, samples, caplog, mode, lightning
):
    first, *others = (
        shade.ShadeSampler(make_job(dataset=samples, rank=rank, world_size=2), mode) for rank in (0, 0, 1)
    )
    state = first.state_dict(position=8)
    for sampler in others:
        lightning.ShadeCallback(sampler).load_state_dict(state)
        sampler.set_epoch(state["epoch"])
        assert len(list(sampler)) == len(first) - 8
    told = "has the sampler's state of rank 0 alone, so this rank plans the rest of the epoch itself"
    assert (told in caplog.text) == (mode in {"shade", "reorder"})
